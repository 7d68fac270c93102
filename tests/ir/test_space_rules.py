"""Rules of operators that Lynx does not know: their text, their spaces, and calls on parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lynx
from lynx.ir.core import Value
from lynx.ir.errors import CompileError, UsageError
from lynx.ir.ops.aten import Aten, integers
from lynx.ir.space import FactorKind
from lynx.ir.space_rules import SPACE_RULES, parse_rule
from lynx.ir.types import DType, TensorType


@pytest.fixture(autouse=True)
def no_rules() -> Iterator[None]:
    """Forget the rules of a test."""
    known = dict(SPACE_RULES)
    yield
    SPACE_RULES.clear()
    SPACE_RULES.update(known)


def tensor(*shape: int) -> Value:
    return Value(TensorType(DType.F32, shape))


def op_of(rule: str, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> Aten:
    operands = tuple(tensor(*shape) for shape in shapes)
    return Aten("f.g.default", operands, (), (TensorType(DType.F32, result),), rule=rule)


@pytest.mark.parametrize(
    "text",
    [
        "d0 1 -> d0 1",
        "(), d0 -> d0",
        "b (h d), d -> b h; sum: d",
        "b s -> b; opaque: s",
        "n c -> n c; argument 2.0: n; argument output_size.1: c",
    ],
)
def test_text_and_rules_are_inverse(text: str) -> None:
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "is no rule"),
        ("a b ->", "is no rule"),
        ("a -> b", "no operand in 'a -> b' has 'b'"),
        ("a -> a; mean: a", "'mean' in 'a -> a; mean: a': expected sum"),
        ("a -> a; argument: a", "'argument' in"),
        ("a -> a; argument 1.x: a", "'argument 1.x' in"),
        ("a -> a; argument 1: b", "no operand in"),
        ("a? -> a?", "'a?' in 'a? -> a?' is no name of a factor"),
    ],
)
def test_malformed_rules(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="bad-rule") as caught:
        parse_rule(text)
    assert message in str(caught.value)


def test_kinds_of_factors() -> None:
    space = op_of("b s d, d e -> b e; sum: d", [(2, 3, 4), (4, 5)], (2, 5)).space()
    assert space is not None
    kinds = {factor.name: (factor.size, factor.kind) for factor in space.factors}
    assert kinds == {
        "b": (2, FactorKind.PARALLEL),
        "s": (3, FactorKind.OPAQUE),
        "d": (4, FactorKind.REDUCTION),
        "e": (5, FactorKind.PARALLEL),
    }


def test_parts_of_a_call() -> None:
    """Dimensions that nothing cuts keep their sizes, and arguments follow those of factors."""
    op = Aten(
        "f.g.default", (tensor(6, 4, 5), 3, (6, 4)), (("size", (6,)),),
        (TensorType(DType.F32, (6, 7, 4)),),
        rule="n c 1 -> n 1 c; argument 2.0: n; argument size.0: n",
    )  # fmt: skip
    part = op.localized((tensor(2, 4, 5),), "n", 2, 2)
    assert isinstance(part, Aten)
    assert part.out.shape == (2, 7, 4)
    assert integers(part) == {"1": 3, "2.0": 2, "2.1": 4, "size.0": 2}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("a, b -> a", "a rule for 2 operands is used for 1"),
        ("a -> a", "a rule with 1 dimensions is used for f32[6, 4]"),
        ("a a -> a", "another size"),
        ("a", "has a malformed rule"),
    ],
)
def test_rules_that_do_not_fit(rule: str, message: str) -> None:
    with pytest.raises(CompileError, match="rule-mismatch") as caught:
        op_of(rule, [(6, 4)], (6,)).space()
    assert message in str(caught.value)


def test_rules_of_users_come_first() -> None:
    op = Aten(
        "aten.glu.default",
        (tensor(6, 4), 1),
        (),
        (TensorType(DType.F32, (6, 2)),),
        rule="1 d0 -> 1 d0",
    )
    lynx.sharding_rule("aten::glu", "rows 1 -> rows 1")
    space = op.space()
    assert space is not None
    assert [factor.name for factor in space.factors] == ["rows"]
    with pytest.raises(UsageError, match="unknown-operator"):
        lynx.sharding_rule("aten::no_such_thing", "a -> a")
    with pytest.raises(UsageError, match=r"test_space_rules.py.*'aten::glu': 'a' is no rule"):
        lynx.sharding_rule("aten::glu", "a")
