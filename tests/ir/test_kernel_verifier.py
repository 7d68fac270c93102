"""Invariants of kernels that text cannot break, and that all have a test."""

from __future__ import annotations

import dataclasses
import re

import pytest

from lynx.ir import (
    CompileError,
    DType,
    Kernel,
    KernelBuilder,
    Location,
    kernel_verifier,
    parse_kernel,
    verify_kernel,
)
from lynx.ir.index_range import is_injective, reach
from lynx.ir.kernel import (
    Apply,
    Buffer,
    Constant,
    Index,
    Instruction,
    KernelAxis,
    Load,
    Reduce,
    Store,
    Term,
)
from tests.tools.tree import ROOT

PLACE = Location("model.py", 3, "mlp")


def exponential() -> Kernel:
    builder = KernelBuilder()
    builder.loc = PLACE
    index = Index((Term(builder.axis("i", 8)),))
    x = builder.load(builder.buffer("x", DType.F32, 8), index)
    y = builder.buffer("y", DType.F32, 8, is_written=True)
    builder.store(y, index, builder.apply("exp", x, dtype=DType.F32))
    return builder.build("exponential")


KERNEL = exponential()
LOAD, EXP, STORE = KERNEL.body
assert isinstance(LOAD, Load)
assert isinstance(STORE, Store)
X = LOAD.out
STRANGER = exponential()


def with_body(*body: Instruction) -> Kernel:
    return dataclasses.replace(KERNEL, body=body)


def failure(kernel: Kernel) -> CompileError:
    with pytest.raises(CompileError) as caught:
        verify_kernel(kernel)
    return caught.value


def test_fine() -> None:
    verify_kernel(KERNEL)


def test_report_names_instruction_and_place() -> None:
    error = failure(with_body(LOAD, dataclasses.replace(EXP, function="log", dtype=DType.F64)))
    assert error.loc == PLACE
    assert str(error) == (
        "model.py:3 in mlp: error[function-type]: 'log' gives f32, not f64, in '%1 = log %0 : f64'"
    )


ROW = ("i",)
CASES = [
    ("undefined-scalar", with_body(EXP, LOAD)),
    ("undefined-scalar", with_body(LOAD, STRANGER.body[1])),
    ("defined-twice", with_body(LOAD, LOAD)),
    ("defined-twice", dataclasses.replace(KERNEL, axes=(*KERNEL.axes, KernelAxis("i", 2)))),
    ("defined-twice", dataclasses.replace(KERNEL, buffers=(*KERNEL.buffers, *KERNEL.buffers))),
    ("unknown-buffer", with_body(STRANGER.body[0])),
    ("foreign-axis", with_body(Load(ROW, LOAD.buffer, Index((Term("k"),))))),
    ("foreign-axis", with_body(LOAD, Reduce(ROW, "sum", X, ("k",)))),
    ("bad-domain", with_body(dataclasses.replace(LOAD, domain=()))),
    ("bad-domain", with_body(LOAD, Reduce((), "sum", X, ROW))),
    ("bad-domain", with_body(LOAD, EXP, dataclasses.replace(STORE, domain=()))),
    ("bad-constant", with_body(Constant((), 1, DType.C64))),
    ("bad-function", with_body(LOAD, Apply(ROW, "expp", (X,), DType.F32))),
    ("bad-name", dataclasses.replace(KERNEL, axes=(KernelAxis("i j", 8),))),
    ("bad-name", dataclasses.replace(KERNEL, buffers=(Buffer("", DType.F32, 1),))),
]


@pytest.mark.parametrize(("code", "kernel"), CASES)
def test_broken(code: str, kernel: Kernel) -> None:
    assert failure(kernel).code == code


def test_each_invariant_of_the_list_has_a_test() -> None:
    text = kernel_verifier.__doc__ or ""
    listed = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    numbered = re.findall(r"^(\d+)\. ", text, re.MULTILINE)
    assert numbered == [str(n + 1) for n in range(len(numbered))]
    source = (ROOT / "ir/kernel_verifier.py").read_text()
    assert listed == set(re.findall(r'fail\(\s*"([a-z-]+)"', source))
    lynx = (ROOT / "tests/ir/kernel_errors.lynx").read_text()
    tested = {code for code, _ in CASES} | set(re.findall(r"ERROR\(([a-z-]+)\)", lynx))
    assert listed <= tested


def index_of(text: str) -> tuple[Index, Kernel]:
    kernel = parse_kernel(
        "kernel k(%x: f32[99]) over i: 6, j: 4, k: 1, e: 0, n: 5000, s: s0 "
        f"{{\n%0 = load %x[{text}] : f32\n}}"
    )
    (load,) = kernel.body
    assert isinstance(load, Load)
    return load.index, kernel


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", (7, 7)),
        ("i*4 + j", (0, 23)),
        ("i*(-4) + j + 20", (0, 23)),
        ("i // 4 * 100 + i % 4", (0, 101)),
        ("i % 4", (0, 3)),
        ("n // 7 % 10", (0, 9)),
        ("n // 10 * 2 + n % 10", (0, 1007)),
        ("e", None),
        ("s", None),
        ("i*s0", None),
    ],
)
def test_reach(text: str, expected: tuple[int, int] | None) -> None:
    index, kernel = index_of(text)
    assert reach(index, kernel.sizes) == expected


@pytest.mark.parametrize(
    ("text", "axes", "expected"),
    [
        ("i*4 + j", "ij", True),
        ("j*6 + i", "ij", True),
        ("i*(-4) + j", "ij", True),
        ("i*3 + j", "ij", False),
        ("i*3 + j*2", "ij", False),
        ("i*5 + j*2", "ij", True),
        ("i // 2 * 2 + i % 2", "i", True),
        ("i // 2", "i", False),
        ("i", "ik", True),
        ("i", "ij", False),
        ("i", "ije", True),
        ("i", "is", None),
        ("s", "is", False),
        ("n // 10 * 10 + n % 10", "n", None),
    ],
)
def test_is_injective(text: str, axes: str, expected: bool | None) -> None:
    index, kernel = index_of(text)
    assert is_injective(index, tuple(axes), kernel.sizes) is expected
