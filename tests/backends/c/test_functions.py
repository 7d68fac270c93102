"""Every scalar function in every type, on special values and random ones."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

from lynx.backends.reference import run_kernel
from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import DType, Kernel
from lynx.ir.kernel import KernelBuilder
from lynx.ir.kernel_functions import FUNCTIONS, ScalarFunction
from tests.backends.c.running import Runner, compiled, row_major

FLOATS = (DType.F32, DType.F64)
INTEGERS = (
    DType.I8, DType.I16, DType.I32, DType.I64, DType.U8,
)  # fmt: skip
# The accepted error in units of the last place, where it is not half of one.
ULPS = {
    "exp": 2, "exp2": 2, "expm1": 3, "log": 2, "log2": 3, "log10": 3, "log1p": 4, "sin": 2,
    "cos": 2, "tan": 4, "tanh": 4, "sigmoid": 3, "erf": 2, "erfc": 4, "sinh": 4, "cosh": 3,
    "pow": 2, "rsqrt": 2, "asin": 4, "acos": 4, "atan": 4, "asinh": 4, "acosh": 4, "atanh": 4,
    "atan2": 4, "hypot": 2, "sqrt": 1,
}  # fmt: skip
# torch gives one zero or the other.
ZEROS_OF_ANY_SIGN = ("fmax", "fmin", "maximum", "minimum")
COUNT = 40_000


def types_of(function: ScalarFunction) -> list[DType]:
    found: list[DType] = []
    for letter, dtypes in (("b", (DType.BOOL,)), ("i", INTEGERS), ("f", FLOATS)):
        if letter in function.accepts:
            found += dtypes
    return found


CASES = [(name, dtype) for name, f in FUNCTIONS.items() for dtype in types_of(f)]


def arity(name: str) -> int:
    return FUNCTIONS[name].arity


def kernel_of(name: str, dtype: DType, count: int) -> Kernel:
    builder = KernelBuilder()
    builder.axis("i", count)
    index = row_major(builder, "i")
    kinds = [DType.BOOL, dtype, dtype] if name == "where" else [dtype] * arity(name)
    loads = [
        builder.load(builder.buffer(f"x{at}", kind, count), index) for at, kind in enumerate(kinds)
    ]
    result = DType.BOOL if FUNCTIONS[name].is_predicate else dtype
    out = builder.buffer("out", result, count, is_written=True)
    builder.store(out, index, builder.apply(name, *loads, dtype=result))
    return builder.build(name)


SPECIAL = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, 2.5,
    -2.5, 0.1, 1e-3, 1e-7, -1e-7, 1e-20, 1e-38, 1e-40, -1e-40, 1e-45, -1e-45, 88.0, 88.7, 89.0,
    90.0, -87.0, -88.0, -100.0, -103.9, -105.0, 127.0, 128.0, -126.0, -149.0, -150.0, 700.0, 709.7,
    710.0, -708.0, -745.0, -746.0, 4.0, 9.0, 10.0, 3.4e38, -3.4e38, 1e10, 16777216.0, 16777215.0,
    8388607.5, 8388608.0, 1e22, 3.1415927, 1.5707964, 0.7853982, 6.2831855, 0.9999999, 1.0000001,
    0.92773, 0.9278, 1e5, 1e300, 5e-324, 1e-310, 4503599627370497.5,
]  # fmt: skip


@functools.cache
def floats(dtype: DType, seed: int) -> torch.Tensor:
    """Special values, then numbers of all magnitudes, then ordinary ones."""
    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    wide = torch.rand(COUNT, generator=generator, dtype=torch.float64) * 600 - 300
    wide = torch.exp2(wide / (4 if dtype is DType.F32 else 1))
    sign = torch.randint(0, 2, (COUNT,), generator=generator) * 2 - 1
    plain = torch.randn(COUNT, generator=generator, dtype=torch.float64) * 4
    unit = torch.rand(COUNT, generator=generator, dtype=torch.float64) * 2.2 - 1.1
    near_one = 1 + torch.randn(COUNT, generator=generator, dtype=torch.float64) * 1e-3
    large = torch.rand(COUNT, generator=generator, dtype=torch.float64) * 240 - 120
    parts = [special, wide * sign, plain, unit, near_one, large]
    return torch.cat(parts).to(torch_dtype(dtype))


def pairs_of(values: torch.Tensor, first: int) -> list[torch.Tensor]:
    """All pairs of the first values, then pairs of the rest in another order."""
    some = values[:first]
    grid = torch.meshgrid(some, some, indexing="ij")
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(values.numel(), generator=generator)
    return [
        torch.cat([grid[0].reshape(-1), values]), torch.cat([grid[1].reshape(-1), values[order]])
    ]  # fmt: skip


def integers(dtype: DType) -> torch.Tensor:
    info = torch.iinfo(torch_dtype(dtype))
    special = [0, 1, 2, 3, 7, 8, 15, 31, 32, 63, 64, 65, info.max, info.max - 1, info.min]
    special += [info.min + 1, -1, -2, -3, -64] if info.min else []
    generator = torch.Generator().manual_seed(5)
    low, high = max(info.min, -(1 << 40)), min(info.max, 1 << 40)
    random = torch.randint(low, high, (1000,), generator=generator)
    wrapped = torch.tensor(special).to(torch_dtype(dtype))
    return torch.cat([wrapped, random.to(torch_dtype(dtype))])


def inputs_of(name: str, dtype: DType) -> list[torch.Tensor]:
    if dtype is DType.BOOL:
        rows = torch.tensor([[(n >> bit) & 1 == 1 for bit in range(3)] for n in range(8)])
        return [rows[:, at].contiguous() for at in range(arity(name))]
    values = floats(dtype, 1) if dtype in FLOATS else integers(dtype)
    if arity(name) == 1:
        return [values]
    pairs = pairs_of(values, len(SPECIAL) if dtype in FLOATS else 20)
    if name == "fma":
        # Sums that are near zero, others, and special numbers.
        a, b = pairs
        third = torch.where(torch.arange(a.numel()) % 2 == 0, -(a * b), a.flip(0))
        return [a, b, third]
    if dtype not in FLOATS and name in ("floor_div", "trunc_div", "remainder", "fmod"):
        least = torch.iinfo(pairs[0].dtype).min
        # torch raises for 0, and the least number divided by -1 may trap there.
        is_bad = (pairs[1] == 0) | ((pairs[0] == least) & (pairs[1] == pairs[1].new_tensor(-1)))
        pairs[1][is_bad] = 1
    if name == "where":
        generator = torch.Generator().manual_seed(7)
        chosen = torch.randint(0, 2, pairs[0].shape, generator=generator).bool()
        return [chosen, *pairs]
    return pairs


@pytest.fixture(scope="module")
def runners() -> dict[tuple[str, DType], Runner]:
    kernels = [kernel_of(name, dtype, inputs_of(name, dtype)[0].numel()) for name, dtype in CASES]
    return dict(zip(CASES, compiled(kernels), strict=True))


def distance(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Errors in units of the last place of the exact result, which is of higher precision."""
    info = torch.finfo(actual.dtype)
    magnitude = exact.abs().clamp(min=info.smallest_normal, max=info.max)
    exponent = torch.frexp(magnitude).exponent - 1
    unit = torch.ldexp(torch.tensor(info.eps, dtype=torch.float64), exponent.double())
    return (actual.double() - exact).abs() / unit


def assert_floats(name: str, dtype: DType, out: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    expected = reference(name, inputs)
    precise = reference(name, [x.double() if x.is_floating_point() else x for x in inputs])
    rounded = precise.to(out.dtype)
    # torch's own vectorized functions overflow or lose subnormal numbers here and there.
    same = agrees(out, expected) | agrees(out, rounded)
    finite = torch.stack([x.isfinite() for x in inputs if x.is_floating_point()]).all(0)
    close = finite & out.isfinite() & (distance(out, precise) <= ULPS.get(name, 0))
    if dtype is DType.F64:
        limits = {"sinh": 709.0, "cosh": 709.0, "sigmoid": 700.0}
        if name in limits:
            close |= inputs[0].abs() > limits[name]
    if name in ("fmod", "remainder"):
        close |= inputs[1].abs() < torch.finfo(out.dtype).smallest_normal
        close |= (inputs[0] / inputs[1]).abs() > 1e18
    wrong = (~(same | close)).nonzero().reshape(-1)[:5].tolist()
    assert not wrong, [
        ([x[at].item() for x in inputs], out[at].item(), expected[at].item(), precise[at].item())
        for at in wrong
    ]
    if name not in ZEROS_OF_ANY_SIGN:
        zeros = (out == 0) & (expected == 0)
        assert torch.equal(out.signbit()[zeros], expected.signbit()[zeros])


def agrees(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x == y) | (x.isnan() & y.isnan())


def reference(name: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    kind = inputs[-1].dtype
    dtype = next(d for d in DType if d.value in _NAMES and _NAMES[d.value] is kind)
    kernel = kernel_of(name, dtype, inputs[0].numel())
    result = torch_dtype(kernel.buffers[-1].dtype)
    buffers = {f"x{at}": x for at, x in enumerate(inputs)}
    buffers["out"] = torch.zeros(inputs[0].numel(), dtype=result)
    run_kernel(kernel, buffers)
    return buffers["out"]


_NAMES: dict[str, Any] = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda case: str(case))
def test_function(name: str, dtype: DType, runners: dict[tuple[str, DType], Runner]) -> None:
    inputs = inputs_of(name, dtype)
    is_predicate = FUNCTIONS[name].is_predicate
    kind = torch.bool if is_predicate else inputs[-1].dtype
    buffers = {f"x{at}": x for at, x in enumerate(inputs)}
    buffers["out"] = torch.empty(inputs[0].numel(), dtype=kind)
    runners[name, dtype](buffers, {})
    if is_predicate or dtype not in FLOATS:
        expected = reference(name, inputs)
        wrong = (buffers["out"] != expected).nonzero().reshape(-1)[:5].tolist()
        assert not wrong, [
            ([x[at].item() for x in inputs], buffers["out"][at].item(), expected[at].item())
            for at in wrong
        ]
    else:
        assert_floats(name, dtype, buffers["out"], inputs)


def test_bounds_are_of_functions_that_there_are() -> None:
    assert [name for name in (*ULPS, *ZEROS_OF_ANY_SIGN) if name not in FUNCTIONS] == []


@pytest.mark.parametrize("floating", FLOATS, ids=str)
@pytest.mark.parametrize("integer", INTEGERS, ids=str)
def test_conversion_to_integers_and_back(floating: DType, integer: DType) -> None:
    """Integers have no -0; compilers take the two conversions for `trunc`, which keeps it."""
    values = torch.tensor([-0.0, 0.0, -0.3, 0.7, -0.999, 1.5, 100.5, 3.0] * 8)
    values = values.to(torch_dtype(floating))
    builder = KernelBuilder()
    builder.axis("i", values.numel())
    index = row_major(builder, "i")
    x = builder.load(builder.buffer("x", floating, values.numel()), index)
    out = builder.buffer("out", floating, values.numel(), is_written=True)
    builder.store(out, index, builder.convert(builder.convert(x, integer), floating))
    (runner,) = compiled([builder.build("back")])
    buffers = {"x": values, "out": torch.empty_like(values)}
    runner(buffers, {})
    expected = values.to(torch_dtype(integer)).to(values.dtype)
    assert torch.equal(buffers["out"], expected)
    assert torch.equal(buffers["out"].signbit(), expected.signbit())
