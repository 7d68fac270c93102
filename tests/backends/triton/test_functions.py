"""Each function, conversion and number against torch, on values where they are easily wrong."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lynx.backends.reference.kernels import run_kernel
from lynx.backends.triton.dtypes import torch_type
from lynx.backends.triton.functions import TEMPLATES
from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.ir.kernel import Index, Kernel, KernelBuilder, Scalar, Term
from lynx.ir.kernel_functions import FUNCTIONS
from lynx.ir.types import DType

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.5, 7.0, -7.0, 1e-30, -1e-40, 88.5, -104.0, 1e30]
SPECIAL = [math.inf, -math.inf, math.nan]
ALL_FLOATS = FLOATS + SPECIAL
SIGNED = [0, 1, -1, 2, -2, 3, 7, -7, 100, -128, 127]
COMPUTED = [
    *(DType.BOOL, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64, DType.F32, DType.F64),
]
EXTREMES = ("fmax_out", "fmin_out", "maximum_out", "minimum_out")
DIVISIONS = ("floor_div", "trunc_div", "remainder", "fmod")


def category(dtype: DType) -> str:
    return "b" if dtype is DType.BOOL else "i" if dtype.is_integer else "f"


def values_of(dtype: DType) -> list[bool] | list[int] | list[float]:
    if dtype is DType.BOOL:
        return [False, True]
    if dtype.is_floating:
        return ALL_FLOATS
    info = torch.iinfo(torch_type(dtype))
    return [v for v in [*SIGNED, info.min, info.max] if info.min <= v <= info.max]


def operands(dtype: DType, function: str) -> tuple[torch.Tensor, torch.Tensor]:
    values = values_of(dtype)
    kind = torch_type(dtype)
    pairs = list(itertools.product(values, values))
    first = torch.tensor([a for a, _ in pairs], dtype=kind)
    second = torch.tensor([b for _, b in pairs], dtype=kind)
    if function in DIVISIONS and dtype.is_integer:
        # Programs check for zero; the least by -1 has no result that a type holds.
        second = torch.where(second == 0, 3, second)
        low = torch.iinfo(kind).min
        second = torch.where((first == low) & (second == -1), 5, second)
    elif function in DIVISIONS:
        # torch's vectorised remainder on CPUs is NaN where the quotient overflows.
        overflows = (first / second).isinf() & first.isfinite() & (second != 0)
        second = torch.where(overflows, 0.75, second)
    return first, second


def kernel_of(dtype: DType, names: list[str], count: int) -> Kernel:
    build = KernelBuilder()
    at = Index((Term(build.axis("i", count)),))
    for name in names:
        function = FUNCTIONS[name]
        result = DType.BOOL if function.is_predicate else dtype
        arguments: list[Scalar] = []
        for place in range(function.arity):
            kind = DType.BOOL if name == "where" and place == 0 else dtype
            source = build.buffer(f"{name}_{'abc'[place]}", kind, count)
            arguments.append(build.load(source, at))
        target = build.buffer(f"{name}_out", result, count, is_written=True)
        build.store(target, at, build.apply(name, *arguments, dtype=result))
    return build.build(f"functions_of_{dtype.value}")


def tensors_of(dtype: DType, names: list[str]) -> list[torch.Tensor]:
    found = []
    for name in names:
        function = FUNCTIONS[name]
        first, second = operands(dtype, name)
        choice = torch.arange(len(first)) % 2 == 0
        # Sums of every other are near zero.
        third = torch.where(choice, -(first * second), first) if name == "fma" else first
        given = [first, second, third][: function.arity]
        found += [choice, first, second] if name == "where" else given
        kind = torch.bool if function.is_predicate else torch_type(dtype)
        found.append(torch.zeros(len(first), dtype=kind))
    return found


def test_each_function_has_a_text() -> None:
    assert set(TEMPLATES) == set(FUNCTIONS)


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_functions_mean_what_torch_means(dtype: DType, interpreter: TritonInterpreter) -> None:
    names = [name for name, f in FUNCTIONS.items() if category(dtype) in f.accepts]
    ours, theirs = tensors_of(dtype, names), tensors_of(dtype, names)
    kernel = kernel_of(dtype, names, len(ours[0]))
    interpreter.run_kernel(kernel, ours)
    run_kernel(kernel, theirs)
    for buffer, got, want in zip(kernel.buffers, ours, theirs, strict=True):
        tolerance = {} if not dtype.is_floating or want.dtype is torch.bool else near(dtype)
        torch.testing.assert_close(
            got, want, equal_nan=True, msg=lambda m, b=buffer: f"{b.name}: {m}", **tolerance
        )
        # Which zero is the greater one, torch leaves to the processor.
        if want.dtype.is_floating_point and buffer.name not in EXTREMES:
            real = ~want.isnan()
            signs = torch.signbit(got[real]), torch.signbit(want[real])
            assert torch.equal(*signs), f"{buffer.name}: signs differ"


def near(dtype: DType) -> dict[str, float]:
    # torch's own vectorised functions are a few units in the last place off.
    return {"rtol": 1e-6, "atol": 0.0} if dtype is DType.F32 else {"rtol": 1e-13, "atol": 0.0}


STORED = [*COMPUTED, DType.F16, DType.BF16, DType.U16, DType.U32, DType.U64]


def sources_for_conversion(source: DType, target: DType) -> torch.Tensor:
    kind = torch_type(source)
    if source.is_floating:
        wide = [0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 2.5, 100.25, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1 / 3]
        if target.is_floating or target is DType.BOOL:
            wide += [math.inf, -math.inf, math.nan, 65519.0, 65520.0, 1e-7, 3e38, 1e-45, -3.7]
        elif not target.value.startswith("u"):
            wide += [-3.7, -100.5]
        return torch.tensor(wide, dtype=torch.float64).to(kind)
    values = torch.tensor([int(v) for v in values_of(DType.I64) if -(2**40) < v < 2**40])
    return values.to(kind)


@pytest.mark.parametrize("source", STORED, ids=str)
def test_conversions_are_torch_s(source: DType, interpreter: TritonInterpreter) -> None:
    build = KernelBuilder()
    ours: list[torch.Tensor] = []
    for target in STORED:
        values = sources_for_conversion(source, target)
        at = Index((Term(build.axis(f"i{target.value}", len(values))),))
        x = build.load(build.buffer(f"from_{target.value}", source, len(values)), at)
        out = build.buffer(f"to_{target.value}", target, len(values), is_written=True)
        build.store(out, at, build.convert(x, target))
        ours += [values, torch.zeros(len(values), dtype=torch_type(target))]
    kernel = build.build(f"conversions_of_{source.value}")
    interpreter.run_kernel(kernel, ours)
    for target, given, got in zip(STORED, ours[::2], ours[1::2], strict=True):
        want = given.to(torch_type(target))
        torch.testing.assert_close(
            got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m, t=target: f"{t}: {m}"
        )


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_numbers_keep_type_and_sign(dtype: DType, interpreter: TritonInterpreter) -> None:
    numbers: list[bool | int | float] = list(values_of(dtype))
    build = KernelBuilder()
    choice = build.load(build.buffer("choice", DType.BOOL, 2), Index((Term(build.axis("i", 2)),)))
    for place, number in enumerate(numbers):
        out = build.buffer(f"out{place}", dtype, 2, is_written=True)
        known = build.constant(number, dtype)
        zero = build.constant(0, dtype)
        chosen = build.apply("where", choice, known, zero, dtype=dtype)
        build.store(out, Index((Term("i"),)), chosen)
    kernel = build.build("numbers")
    kind = torch_type(dtype)
    tensors = [torch.tensor([True, False]), *(torch.ones(2, dtype=kind) for _ in numbers)]
    interpreter.run_kernel(kernel, tensors)
    for number, got in zip(numbers, tensors[1:], strict=True):
        want = torch.tensor([number, 0], dtype=kind)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        if dtype.is_floating and not math.isnan(number):
            assert torch.equal(got.signbit(), want.signbit())
