"""The text of dimensions: reading what was printed gives the same, with Python's precedence."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.ir import Dim, TextError, format_dim, parse_dim, symbol
from lynx.ir.dims import (
    FloorDiv,
    Mod,
    evaluate,
    floor_div,
    is_equal,
    maximum,
    minimum,
    python_source,
    remainder,
)

S, T, U = symbol("s0"), symbol("s1"), symbol("u0")


def divisor(size: Any) -> Any:
    """Return what may be divided by: also what was not evaluated may be zero."""
    return 3 if is_equal(sympy.sympify(size).doit(), 0) else size


def combine(a: Any, b: Any) -> Any:
    """Return a strategy for every way to combine two expressions."""
    ways: list[Callable[[], Any]] = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * b,
        lambda: floor_div(a, divisor(b)),
        lambda: remainder(a, divisor(b)),
        lambda: minimum(a, b),
        lambda: maximum(a, b),
        lambda: -a,
        lambda: a**2,
        lambda: sympy.Mul(a, b, evaluate=False),
        lambda: sympy.Add(a, b, evaluate=False),
    ]
    return st.sampled_from(ways).map(lambda way: way())


LEAVES = st.one_of(st.sampled_from((S, T, U)), st.integers(-4, 9), st.just(2**70))
EXPRESSIONS = st.recursive(
    LEAVES, lambda e: st.tuples(e, e).flatmap(lambda p: combine(*p)), max_leaves=7
)


@given(EXPRESSIONS)
@settings(max_examples=400, deadline=None)
def test_reads_back(expression: Any) -> None:
    text = format_dim(expression)
    again = parse_dim(text)
    assert format_dim(again) == text


@given(EXPRESSIONS, st.tuples(*[st.integers(1, 7)] * 3))
@settings(max_examples=300, deadline=None)
def test_keeps_its_value(expression: Any, sizes: tuple[int, int, int]) -> None:
    values = dict(zip(("s0", "s1", "u0"), sizes, strict=True))
    try:
        found = eval(python_source(expression), {"min": min, "max": max, **values})
    except ZeroDivisionError:
        return
    expected = evaluate(sympy.sympify(expression).doit(), values)
    assert found == expected
    assert evaluate(parse_dim(format_dim(expression)), values) == expected


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (7, "7"),
        (-7, "-7"),
        (S, "s0"),
        (2 * S + 1, "2*s0 + 1"),
        (S - T, "s0 - s1"),
        (sympy.Mul(2, S + 1, evaluate=False), "2*s0 + 2"),
        (FloorDiv(S, 2), "s0 // 2"),
        (2 * FloorDiv(S, 2) - 1, "2*(s0 // 2) - 1"),
        (FloorDiv(-S, 2), "(-s0) // 2"),
        (FloorDiv(S, -3), "s0 // (-3)"),
        (FloorDiv(FloorDiv(S, T), 3), "(s0 // s1) // 3"),
        (FloorDiv(S, 2 * T), "s0 // (2*s1)"),
        (S * Mod(S + 1, 4), "s0*((s0 + 1) % 4)"),
        (S**2, "s0**2"),
        ((S + 1) * (T - 1), "(s0 + 1)*(s1 - 1)"),
        (sympy.Max(S, T, 3), "max(3, s0, s1)"),
        (S * (S + 1) / 2, "s0*(s0 + 1) // 2"),
        (S / 2 + sympy.Rational(1, 2), "(s0 + 1) // 2"),
        (S / T, "s0 // s1"),
    ],
    ids=str,
)
def test_form(expression: Dim, text: str) -> None:
    assert format_dim(expression) == text
    assert format_dim(parse_dim(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2*3", 7),
        ("(1 + 2)*3", 9),
        ("7 - 2 - 1", 4),
        ("7 // 2 * 2", 6),
        ("7 % 4 // 2", 1),
        ("-7 // 2", -4),
        ("-7 % 4", 1),
        ("2 ** 3 ** 2", 512),
        ("-2 ** 2", -4),
        ("min(4, 2 + 1, 9)", 3),
        ("max(4, 9) - 1", 8),
        ("--3", 3),
    ],
)
def test_precedence_is_pythons(text: str, expected: int) -> None:
    assert parse_dim(text) == expected == eval(text)


def test_names_are_symbols() -> None:
    # `u8` is an element type elsewhere, and `inf` a number.
    for name in ("s0", "u8", "inf", "none", "min"):
        assert parse_dim(name) == symbol(name)


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("s0 +", "syntax-error", 5),
        ("s0 s1", "syntax-error", 4),
        ("", "syntax-error", 1),
        ("2 ** $", "syntax-error", 6),
        ("s0 // 0", "bad-dimension", 7),
        ("1.5 + s0", "bad-dimension", 7),
        ("mod(s0, 2)", "unknown-function", 1),
    ],
)
def test_mistakes(text: str, code: str, column: int) -> None:
    with pytest.raises(TextError) as caught:
        parse_dim(text)
    assert (caught.value.code, caught.value.line, caught.value.column) == (code, 1, column)


def test_static_helpers_are_pythons() -> None:
    for a in (-7, 0, 7):
        for b in (-2, 3):
            assert floor_div(a, b) == operator.floordiv(a, b)
            assert remainder(a, b) == operator.mod(a, b)
    assert (minimum(3, 1, 2), maximum(3, 1, 2)) == (1, 3)


def test_equality_of_forms() -> None:
    assert is_equal(S * (S + 1), S**2 + S)
    assert not is_equal(S, T)
    assert floor_div(4 * S, 2) == 2 * S
    assert floor_div(S, 1) == S


@pytest.mark.parametrize(
    ("size", "same"),
    [
        (floor_div(S + 5, 2), floor_div(S + 1, 2) + 2),
        (floor_div(S - 1, 2) + 1, floor_div(S + 1, 2)),
        (floor_div(4 * S + T - 3, 4), S + floor_div(T + 1, 4) - 1),
        (floor_div(S + 4, -2), floor_div(S, -2) - 2),
        (floor_div(floor_div(S, 4), 2), floor_div(S, 8)),
        (floor_div(floor_div(S + 1, 2) + 1, 2), floor_div(S + 3, 4)),
        (floor_div(floor_div(S, -3) + 5, 2), floor_div(S + 3, -6) + 3),
    ],
)
def test_division_takes_out_multiples(size: Dim, same: Dim) -> None:
    assert size == same
    for s in range(-7, 8):
        values = {"s0": s, "s1": 3 * s - 2}
        assert evaluate(size, values) == evaluate(same, values)


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-9, 9), st.integers(-6, 6))
def test_division_of_a_sum(s: int, c: int, factor: int, divisor: int) -> None:
    if divisor != 0:
        assert (
            evaluate(floor_div(factor * S + c, divisor), {"s0": s}) == (factor * s + c) // divisor
        )
