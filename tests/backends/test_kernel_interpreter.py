"""The interpreter of kernels against formulas of torch written by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from lynx.backends.reference import run_kernel
from lynx.backends.reference.dtypes import torch_dtype
from lynx.backends.reference.kernels import _COMBINES, _FUNCTIONS
from lynx.ir import (
    DType,
    InternalError,
    Kernel,
    parse_kernel,
    verify_kernel,
)
from lynx.ir.kernel import COMBINES
from lynx.ir.kernel_functions import FUNCTIONS
from tests.tools.kernels import KernelCase, compare

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5, 2.5, 1e-40, 3e38]


def kernel(text: str) -> Kernel:
    made = parse_kernel(text)
    verify_kernel(made)
    return made


def run(text: str, symbols: dict[str, int] | None = None, **buffers: Any) -> dict[str, Any]:
    """Run a kernel on tensors of any shape; return them as they are then."""
    flat = {name: tensor.clone().flatten() for name, tensor in buffers.items()}
    run_kernel(kernel(text), flat, symbols)
    return {name: tensor.reshape(buffers[name].shape) for name, tensor in flat.items()}


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert equality, of the signs of zeros too."""
    assert actual.dtype is expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if actual.dtype.is_floating_point:
        numbers = ~expected.isnan()
        assert torch.equal(actual.signbit()[numbers], expected.signbit()[numbers])


def test_every_function_and_reduction_has_a_meaning() -> None:
    assert set(_FUNCTIONS) == set(FUNCTIONS)
    assert set(_COMBINES) == set(COMBINES)


def test_softmax() -> None:
    x = torch.randn(5, 7)
    text = """
    kernel softmax(%x: f32[7*s0], %y: f32[7*s0] write) over i: s0, j: 7 {
      %0 = load %x[i*7 + j] : f32
      %1 = reduce max over j %0 : f32
      %2 = sub %0, %1 : f32
      %3 = exp %2 : f32
      %4 = reduce sum over j %3 : f32
      %5 = div %3, %4 : f32
      store %y[i*7 + j] %5
    }"""
    found = run(text, {"s0": 5}, x=x, y=torch.zeros(5, 7))["y"]
    torch.testing.assert_close(found, x.softmax(1))


def test_buffers_in_order_and_larger_than_needed() -> None:
    x, y = torch.arange(9.0), torch.full((9,), -1.0)
    text = """
    kernel copy(%x: f32[4], %y: f32[4] write) over i: 4 {
      %0 = load %x[i] : f32
      store %y[i] %0
    }"""
    run_kernel(kernel(text), [x, y])
    assert y.tolist() == [0, 1, 2, 3, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(2, 2), torch.zeros(4).int()])
def test_wrong_buffers(wrong: torch.Tensor) -> None:
    made = kernel("kernel k(%x: f32[4]) over i: 4 { %0 = load %x[i] : f32 }")
    with pytest.raises(ValueError, match=r"buffer 'x' needs 4 elements of torch\.float32"):
        run_kernel(made, {"x": wrong})


def test_low_precision_is_rounded_after_each_op() -> None:
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    text = """
    kernel k(%x: bf16[64], %y: bf16[64], %z: bf16[64] write) over i: 64 {
      %0 = load %x[i] : bf16
      %1 = load %y[i] : bf16
      %2 = convert %0 : f32
      %3 = convert %1 : f32
      %4 = mul %2, %3 : f32
      %5 = convert %4 : bf16
      %6 = convert %5 : f32
      %7 = add %6, %2 : f32
      %8 = convert %7 : bf16
      store %z[i] %8
    }"""
    same(run(text, x=x, y=y, z=torch.empty_like(x))["z"], x * y + x)


def test_index_maps() -> None:
    x = torch.randn(4, 6)
    text = """
    kernel k(%x: f32[24], %t: f32[24] write, %r: f32[24] write, %d: f32[24] write,
             %b: f32[24] write) over i: 6, j: 4, n: 24 {
      %0 = load %x[j*6 + i] : f32
      store %t[i*4 + j] %0
      %1 = load %x[n*(-1) + 23] : f32
      store %r[n] %1
      %2 = load %x[n // 4 + n % 4 * 6] : f32
      store %d[n] %2
      %3 = load %x[j*6] : f32
      %4 = load %x[i] : f32
      %5 = mul %3, %4 : f32
      store %b[i*4 + j] %5
    }"""
    empty = torch.empty(6, 4)
    found = run(text, x=x, t=empty, r=torch.empty(24), d=empty, b=empty)
    same(found["t"], x.T.contiguous())
    same(found["r"], x.flatten().flip(0))
    same(found["d"], x.T.contiguous())
    same(found["b"], x[0].outer(x[:, 0]))


def test_masked_loads_read_nothing_outside() -> None:
    text = """
    kernel pad(%x: f32[3], %y: f32[6] write) over i: 6 {
      %0 = position [i - 2] : i64
      %1 = constant 0 : i64
      %2 = ge %0, %1 : bool
      %3 = constant 3 : i64
      %4 = lt %0, %3 : bool
      %5 = and %2, %4 : bool
      %6 = load %x[i - 2] if %5 else 0.5 : f32
      store %y[i] %6
    }"""
    found = run(text, x=torch.tensor([1.0, 2.0, 3.0]), y=torch.zeros(6))["y"]
    assert found.tolist() == [0.5, 0.5, 1, 2, 3, 0.5]
    # Nothing at all is there to be read.
    text = text.replace("x: f32[3]", "x: f32[0]").replace("constant 3", "constant 0")
    assert run(text, x=torch.zeros(0), y=torch.zeros(6))["y"].tolist() == [0.5] * 6


def test_masked_stores() -> None:
    text = """
    kernel k(%y: f32[4] write) over i: 6 {
      %0 = position [i] : i64
      %1 = constant 4 : i64
      %2 = lt %0, %1 : bool
      %3 = convert %0 : f32
      store %y[i] %3 if %2
    }"""
    assert run(text, y=torch.zeros(4))["y"].tolist() == [0, 1, 2, 3]


GATHER = """
kernel gather(%n: i64[3], %x: f32[8], %y: f32[6] write) over i: 3, j: 2 {
  %0 = load %n[i] : i64
  %1 = constant 0 : i64
  %2 = ge %0, %1 : bool
  %3 = constant 4 : i64
  %4 = lt %0, %3 : bool
  %5 = and %2, %4 : bool
  check %5 "index out of range"
  %6 = where %5, %0, %1 : i64
  %7 = load %x[%6*2 + j] : f32
  store %y[i*2 + j] %7
}"""


def test_gather() -> None:
    x, n = torch.randn(4, 2), torch.tensor([3, 0, 3])
    same(run(GATHER, n=n, x=x, y=torch.zeros(3, 2))["y"], x[n])


@pytest.mark.parametrize("index", [4, -1])
def test_failed_check(index: int) -> None:
    with pytest.raises(IndexError, match="index out of range"):
        run(GATHER, n=torch.tensor([0, index, 0]), x=torch.zeros(8), y=torch.zeros(6))


def test_what_a_wrong_kernel_does_is_caught() -> None:
    text = """
    kernel k(%n: i64[2], %x: f32[4], %y: f32[4] write) over i: 2 {
      %0 = load %n[i] : i64
      %1 = load %x[%0] : f32
      store %y[%0] %1
    }"""
    four = torch.zeros(4)
    for index, code in (([0, 4], "kernel-out-of-bounds"), ([-1, 0], "kernel-out-of-bounds"),
                        ([2, 2], "kernel-writes-twice")):  # fmt: skip
        with pytest.raises(InternalError) as caught:
            run(text, n=torch.tensor(index), x=four, y=four)
        assert caught.value.code == code


def test_sums_into_one_place_are_in_order() -> None:
    text = """
    kernel k(%n: i64[6], %x: f32[6], %y: f32[2] write) over i: 3, j: 2 {
      %0 = load %n[i*2 + j] : i64
      %1 = load %x[i*2 + j] : f32
      store add %y[%0] %1
    }"""
    x = torch.tensor([1e8, 1.0, 1.0, -1e8, 1.0, 1.0])
    found = run(text, n=torch.tensor([0, 0, 1, 0, 0, 1]), x=x, y=torch.tensor([1.0, 1.0]))
    assert found["y"].tolist() == [1.0, 3.0]


def test_the_last_write_to_a_place_stays() -> None:
    text = """
    kernel k(%n: i64[6], %x: f32[6], %y: f32[4] write) over i: 3, j: 2 {
      %0 = load %n[i*2 + j] : i64
      %1 = load %x[i*2 + j] : f32
      store last %y[%0] %1
    }"""
    x = torch.arange(1.0, 7.0)
    found = run(text, n=torch.tensor([0, 0, 1, 3, 0, 1]), x=x, y=torch.tensor([9.0] * 4))
    assert found["y"].tolist() == [5.0, 6.0, 9.0, 4.0]


def test_in_place() -> None:
    text = """
    kernel k(%x: f32[6] write) over i: 6 {
      %0 = load %x[i] : f32
      %1 = load %x[i // 6] : f32
      %2 = add %0, %1 : f32
      store %x[i] %2
    }"""
    x = torch.arange(1.0, 7.0)
    same(run(text, x=x)["x"], x + x[0])


def convert(values: list[Any], source: DType, target: DType) -> torch.Tensor:
    count = len(values)
    text = f"""
    kernel k(%x: {source}[{count}], %y: {target}[{count}] write) over i: {count} {{
      %0 = load %x[i] : {source}
      %1 = convert %0 : {target}
      store %y[i] %1
    }}"""
    x = torch.tensor(values, dtype=torch_dtype(source))
    return run(text, x=x, y=torch.zeros(count, dtype=torch_dtype(target)))["y"]


def test_conversions() -> None:
    numbers = [0.0, -0.0, 1.5, -2.5, 255.9, NAN]
    assert convert(numbers, DType.F32, DType.BOOL).tolist() == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert convert(numbers[:5], DType.F32, DType.I32).tolist() == [0, 0, 1, -2, 255]
    assert convert([-1, 256, 511], DType.I64, DType.U8).tolist() == [255, 0, 255]
    # Ties go to the even neighbour.
    ties = [1 + 2**-8, 1 + 3 * 2**-8]
    assert convert(ties, DType.F32, DType.BF16).tolist() == [1.0, 1 + 2 * 2**-7]


def test_constants_are_converted() -> None:
    text = """
    kernel k(%f: f32[4] write, %u: u8[2] write, %b: bf16[1] write, %n: i64[1] write) {
      %0 = constant 0.1 : f32
      %1 = constant -0.0 : f32
      %2 = constant -1 : u8
      %3 = constant 257 : u8
      %4 = constant 1.00390625 : bf16
      %5 = constant 2*s0 : i64
      %6 = constant nan : f32
      %7 = constant 16777217 : f32
      store %f[0] %0
      store %f[1] %1
      store %f[2] %6
      store %f[3] %7
      store %u[0] %2
      store %u[1] %3
      store %b[0] %4
      store %n[0] %5
    }"""
    found = run(
        text,
        {"s0": 7},
        f=torch.zeros(4),
        u=torch.zeros(2, dtype=torch.uint8),
        b=torch.zeros(1, dtype=torch.bfloat16),
        n=torch.zeros(1, dtype=torch.int64),
    )
    same(found["f"], torch.tensor([0.1, -0.0, NAN, 2**24]))
    assert found["u"].tolist() == [255, 1]
    assert found["b"].tolist() == [1.0]
    assert found["n"].tolist() == [14]


def apply(function: str, dtype: DType, *columns: list[Any]) -> torch.Tensor:
    """Apply a function to the elements of lists, one for each argument."""
    count = len(columns[0])
    result = "bool" if FUNCTIONS[function].is_predicate else dtype
    names = [f"x{index}" for index in range(len(columns))]
    buffers = "".join(f"%{name}: {dtype}[{count}], " for name in names)
    loads = "\n".join(f"%{i} = load %{name}[i] : {dtype}" for i, name in enumerate(names))
    arguments = ", ".join(f"%{index}" for index in range(len(names)))
    text = f"""
    kernel k({buffers}%y: {result}[{count}] write) over i: {count} {{
      {loads}
      %r = {function} {arguments} : {result}
      store %y[i] %r
    }}"""
    kind = torch_dtype(dtype)
    given = {n: torch.tensor(c, dtype=kind) for n, c in zip(names, columns, strict=True)}
    out = torch.zeros(count, dtype=torch_dtype(DType(str(result))))
    return run(text, **given, y=out)["y"]


def test_functions_of_special_numbers() -> None:
    f = DType.F32
    same(apply("sign", f, [NAN, INF, -0.0, -3.0]), torch.tensor([0.0, 1.0, 0.0, -1.0]))
    same(apply("round", f, [0.5, 1.5, -0.5, 2.5]), torch.tensor([0.0, 2.0, -0.0, 2.0]))
    same(apply("maximum", f, [NAN, 1.0, 2.0], [1.0, NAN, 3.0]), torch.tensor([NAN, NAN, 3.0]))
    same(apply("fmax", f, [NAN, 1.0, NAN], [1.0, NAN, NAN]), torch.tensor([1.0, 1.0, NAN]))
    same(apply("remainder", f, [5.0, -5.0, 5.0], [3.0, 3.0, -3.0]), torch.tensor([2.0, 1.0, -1.0]))
    same(apply("fmod", f, [5.0, -5.0, 5.0], [3.0, 3.0, -3.0]), torch.tensor([2.0, -2.0, 2.0]))
    same(apply("copysign", f, [1.0, -1.0], [-0.0, 0.0]), torch.tensor([-1.0, 1.0]))
    same(apply("signbit", f, [-0.0, 0.0, -1.0]), torch.tensor([True, False, True]))
    same(apply("lt", f, [NAN, 1.0], [1.0, NAN]), torch.tensor([False, False]))
    same(apply("ne", f, [NAN, 1.0], [NAN, 1.0]), torch.tensor([True, False]))


def test_functions_of_integers() -> None:
    wide, byte = DType.I64, DType.U8
    assert apply("floor_div", wide, [7, -7, 7], [2, 2, -2]).tolist() == [3, -4, -4]
    assert apply("trunc_div", wide, [7, -7, 7], [2, 2, -2]).tolist() == [3, -3, -3]
    assert apply("remainder", wide, [7, -7, 7], [3, 3, -3]).tolist() == [1, 2, -2]
    assert apply("fmod", wide, [7, -7, 7], [3, 3, -3]).tolist() == [1, -1, 1]
    assert apply("add", byte, [255, 1], [1, 1]).tolist() == [0, 2]
    assert apply("neg", byte, [1, 0]).tolist() == [255, 0]
    assert apply("abs", wide, [-(2**63)]).tolist() == [-(2**63)]
    assert apply("not", wide, [0, -1]).tolist() == [-1, 0]
    assert apply("shift_left", wide, [1, 1], [3, 64]).tolist() == [8, 0]
    assert apply("shift_right", wide, [-8, -8], [1, 64]).tolist() == [-4, -1]
    assert apply("lt", DType.BOOL, [False, True], [True, False]).tolist() == [True, False]
    assert apply("not", DType.BOOL, [False, True]).tolist() == [True, False]


_OF_TORCH = [name for name, f in FUNCTIONS.items() if f.accepts == "f" and name != "fma"]


@pytest.mark.parametrize("name", _OF_TORCH)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_floating_functions_are_those_of_torch(name: str, dtype: DType) -> None:
    arity = FUNCTIONS[name].arity
    columns = [SPECIAL, SPECIAL[3:] + SPECIAL[:3]][:arity]
    operands = [torch.tensor(column, dtype=torch_dtype(dtype)) for column in columns]
    same(apply(name, dtype, *columns), getattr(torch, name)(*operands))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_a_product_with_an_added_term_is_rounded_once(dtype: DType) -> None:
    one = 1 + torch.finfo(torch_dtype(dtype)).eps
    # (1 + e)(1 - e) - 1 = -e * e, of which a rounded product leaves nothing.
    found = apply("fma", dtype, [one, one, INF, NAN], [2 - one, 3.0, 0.0, 1.0], [-1.0, -0.0, 1, 1])
    exact = Fraction(one) * Fraction(2 - one) - 1
    assert Fraction(found[0].item()) == exact
    assert found[1] == 3 * one
    assert found[2:].isnan().all()


def reduced(combine: str, dtype: DType, rows: list[list[Any]]) -> list[torch.Tensor]:
    """Reduce each row; return one tensor for each result."""
    height, width = len(rows), len(rows[0])
    types = [dtype, DType.I64] if combine.startswith("arg") else [dtype] * COMBINES[combine]
    outs = ", ".join(f"%y{i}: {kind}[{height}] write" for i, kind in enumerate(types))
    results = ", ".join(f"%r{i}" for i in range(len(types)))
    stores = "\n".join(f"store %y{i}[i] %r{i}" for i in range(len(types)))
    text = f"""
    kernel k(%x: {dtype}[{height * width}], {outs}) over i: {height}, j: {width} {{
      %0 = load %x[i*{width} + j] : {dtype}
      {results} = reduce {combine} over j %0 : {", ".join(map(str, types))}
      {stores}
    }}"""
    given = {f"y{i}": torch.zeros(height, dtype=torch_dtype(k)) for i, k in enumerate(types)}
    found = run(text, x=torch.tensor(rows, dtype=torch_dtype(dtype)), **given)
    return [found[name] for name in given]


def test_reductions() -> None:
    x = torch.randn(4, 33)
    rows = x.tolist()
    for combine, expected in (
        ("sum", (x.sum(1),)),
        ("prod", (x.prod(1),)),
        ("max", (x.amax(1),)),
        ("min", (x.amin(1),)),
        ("argmax", tuple(x.max(1))),
        ("argmin", tuple(x.min(1))),
        ("welford", (x.mean(1), x.var(1, correction=0) * 33)),
        ("softmax", (x.amax(1), (x - x.amax(1, keepdim=True)).exp().sum(1))),
    ):
        for found, wanted in zip(reduced(combine, DType.F32, rows), expected, strict=True):
            torch.testing.assert_close(found, wanted)


def test_reductions_of_special_numbers() -> None:
    rows = [[1.0, NAN, 3.0, NAN], [2.0, 5.0, 5.0, -INF], [-INF] * 4, [INF, 1.0, INF, 2.0]]
    (largest,) = reduced("max", DType.F32, rows)
    same(largest, torch.tensor([NAN, 5.0, -INF, INF]))
    (least,) = reduced("min", DType.F32, rows)
    same(least, torch.tensor([NAN, -INF, -INF, 1.0]))
    value, place = reduced("argmax", DType.F32, rows)
    same(value, torch.tensor([NAN, 5.0, -INF, INF]))
    assert place.tolist() == [1, 1, 0, 0]
    assert reduced("argmin", DType.F32, rows)[1].tolist() == [1, 3, 0, 1]
    largest, total = reduced("softmax", DType.F32, rows)
    same(largest, torch.tensor([NAN, 5.0, -INF, INF]))
    assert total.isnan().tolist() == [True, False, True, True]


def test_reductions_of_integers_and_truth() -> None:
    rows = [[200, 100, 1], [1, 2, 3]]
    assert reduced("sum", DType.U8, rows)[0].tolist() == [45, 6]
    assert reduced("prod", DType.U8, rows)[0].tolist() == [200 * 100 % 256, 6]
    truth = [[True, False], [True, True], [False, False]]
    assert reduced("any", DType.BOOL, truth)[0].tolist() == [True, True, False]
    assert reduced("all", DType.BOOL, truth)[0].tolist() == [False, True, False]
    assert reduced("max", DType.BOOL, truth)[0].tolist() == [True, True, False]


def test_reductions_over_no_point() -> None:
    rows: list[list[Any]] = [[], []]
    for combine, value in (("sum", 0.0), ("prod", 1.0), ("max", -INF), ("min", INF)):
        assert reduced(combine, DType.F32, rows)[0].tolist() == [value] * 2
    assert reduced("max", DType.I32, rows)[0].tolist() == [-(2**31)] * 2
    assert reduced("min", DType.U8, rows)[0].tolist() == [255] * 2
    assert reduced("any", DType.BOOL, rows)[0].tolist() == [False] * 2
    assert reduced("all", DType.BOOL, rows)[0].tolist() == [True] * 2


def test_reductions_over_axes_in_any_order_and_outside_of_the_domain() -> None:
    text = """
    kernel k(%x: f32[6], %a: i64[1] write, %b: i64[1] write, %s: f32[2] write)
        over i: 2, j: 3, k: 5 {
      %0 = load %x[i*3 + j] : f32
      %1, %2 = reduce argmax over i, j %0 : f32, i64
      %3, %4 = reduce argmax over j, i %0 : f32, i64
      store %a[0] %2
      store %b[0] %4
      %5 = reduce sum over j, k %0 : f32
      store %s[i] %5
    }"""
    x = torch.tensor([[1.0, 9.0, 2.0], [9.0, 0.0, 3.0]])
    one = torch.zeros(1, dtype=torch.int64)
    found = run(text, x=x, a=one, b=one, s=torch.zeros(2))
    assert (found["a"].item(), found["b"].item()) == (1, 1)
    assert found["s"].tolist() == [60.0, 60.0]


def test_a_wrong_back_end_is_caught() -> None:
    """The comparison would notice a back end that forgets the last element or any check."""

    def forget(kernel: Kernel, buffers: dict[str, torch.Tensor], symbols: Any) -> None:
        kept = {name: tensor.clone() for name, tensor in buffers.items()}
        run_kernel(kernel, buffers, symbols)
        for name, tensor in buffers.items():
            tensor[-1:] = kept[name][-1:]

    x = torch.tensor([1.0, 2.0])
    made = kernel(
        "kernel k(%x: f32[2] write) over i: 2 {"
        "%0 = load %x[i] : f32\n%1 = neg %0 : f32\nstore %x[i] %1 }"
    )
    compare(KernelCase(made, {}, {"x": x}), run_kernel)
    with pytest.raises(AssertionError, match="buffer x"):
        compare(KernelCase(made, {}, {"x": x}), forget)
    failing = {"n": torch.tensor([0, 9, 0]), "x": torch.zeros(8), "y": torch.zeros(6)}
    with pytest.raises(AssertionError, match="expected the check to fail"):
        compare(KernelCase(kernel(GATHER), {}, failing), lambda *arguments: None)
