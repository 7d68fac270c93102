"""Reductions, scans and softmax import to structured ops that give eager's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lynx.ir.core import Value
from lynx.ir.errors import CompileError
from lynx.ir.ops import reduction
from lynx.ir.ops.softmax import Softmax
from lynx.ir.types import DType, TensorType
from tests.importer.functions import aten, check, declined, numbers, results, traced
from tests.importer.one_operator import assert_imports_exactly, operator

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)
SHAPES = ((), (5,), (1, 4), (2, 0, 3), (2, 3, 4), (33, 70))


def special(dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix with NaN and infinities in some of its rows."""
    x = numbers(6, 9, dtype=dtype)
    if dtype.is_floating_point:
        x[1, 2], x[2, 3], x[3, 4], x[4, :] = torch.nan, torch.inf, -torch.inf, -torch.inf
    return x


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    plain = [numbers(*shape, dtype=dtype) for shape in SHAPES]
    return [*plain, special(dtype), numbers(4, 3, 5, dtype=dtype).transpose(0, 2)]


def dims_of(x: torch.Tensor) -> list[int]:
    return [0, -1] if x.dim() < 2 else [0, -1, 1]


def try_all(
    name: str,
    dtype: torch.dtype,
    calls: Callable[[torch.Tensor], Any],
    given: list[torch.Tensor] | None = None,
) -> None:
    """Check the calls of an operator that eager and torch's tracing accept."""
    target = operator(name)
    total = 0
    for x in inputs(dtype) if given is None else given:
        accepted = [call for call in calls(x) if accepts(target, x, call)]
        total += len(accepted)

        def every(x: torch.Tensor, accepted: list[Any] = accepted) -> list[torch.Tensor]:
            parts = [target(x, *arguments, **keywords) for arguments, keywords in accepted]
            return [result for part in parts for result in results(part)]

        check(every, x)
    assert total


def accepts(target: Any, x: torch.Tensor, call: Any) -> bool:
    arguments, keywords = call
    try:
        target(x, *arguments, **keywords)
        target(x.to("meta"), *arguments, **keywords)
    except (RuntimeError, NotImplementedError, IndexError):
        return False
    return True


TOTALS = ("sum", "mean", "nansum")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TOTALS)
def test_totals(name: str, dtype: torch.dtype) -> None:
    if name == "mean" and not dtype.is_floating_point:
        pytest.skip("eager does not average integers")

    def calls(x: torch.Tensor) -> list[Any]:
        dims: list[Any] = [[dim] for dim in dims_of(x)] + [None]
        dims += [[0, -1]] if x.dim() > 1 else []
        dims += [[]] if name != "nansum" else []  # tracing and eager disagree about none
        return [((dim, keep), {}) for dim in dims for keep in (False, True)]

    overload = {"sum": "dim_IntList", "mean": "dim", "nansum": "default"}[name]
    try_all(f"aten.{name}.{overload}", dtype, calls)
    if name != "nansum":
        try_all(f"aten.{name}.default", dtype, lambda x: [((), {})])


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool])
@pytest.mark.parametrize("result", [torch.float64, torch.bfloat16, torch.int64])
def test_totals_that_convert(dtype: torch.dtype, result: torch.dtype) -> None:
    x = numbers(6, 5, dtype=dtype)
    for name in ("sum.dim_IntList", "mean.dim", "nansum.default"):
        assert_imports_exactly(f"aten.{name}", x, [1], dtype=result)
    for name in ("prod.dim_int", "cumsum.default", "cumprod.default"):
        assert assert_imports_exactly(f"aten.{name}", x, 0, dtype=result)
    assert assert_imports_exactly("aten.prod.default", x, dtype=result)


def test_no_conversion_is_no_attribute() -> None:
    graph = traced(lambda x: aten.sum.dim_IntList(x, [0], dtype=torch.float32), numbers(3, 4))
    assert graph.ops[0].attributes == {"dims": (0,), "keepdim": False, "dtype": None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes(name: str, dtype: torch.dtype) -> None:
    def calls(x: torch.Tensor) -> list[Any]:
        dims = [[dim] for dim in dims_of(x)] + [[]]
        return [((dim, keep), {}) for dim in dims for keep in (False, True)]

    try_all(f"aten.{name}.default", dtype, calls)


def one_dim(x: torch.Tensor) -> list[Any]:
    return [((dim, keep), {}) for dim in dims_of(x) for keep in (False, True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["max.dim", "min.dim", "any.dim", "all.dim", "prod.dim_int", "argmax.default"]
)
def test_one_dimension(name: str, dtype: torch.dtype) -> None:
    if name == "argmax.default" and dtype is torch.bool:
        pytest.skip("eager does not order booleans here")
    try_all(f"aten.{name}", dtype, one_dim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["max", "min", "any", "all", "prod", "argmin", "argmax", "count_nonzero"]
)
def test_whole_tensors(name: str, dtype: torch.dtype) -> None:
    if name in ("argmin", "argmax") and dtype is torch.bool:
        pytest.skip("eager does not order booleans here")
    try_all(f"aten.{name}.default", dtype, lambda x: [((), {})])


def test_extremes_of_zeros_of_both_signs() -> None:
    for size in (2, 7, 8, 9, 33, 100):
        for seed in range(10):
            drawn = torch.rand(size, generator=torch.Generator().manual_seed(seed)) < 0.5
            x = torch.where(drawn, 0.0, -0.0)
            check(lambda x: (aten.max.default(x), aten.min.default(x), aten.amax.default(x)), x)


@pytest.mark.parametrize("name", ["any", "all"])
def test_lists_of_dimensions_of_truth_values(name: str) -> None:
    x = numbers(3, 4, 5, dtype=torch.int32)
    for dims in ([0, -1], [1], None):
        assert assert_imports_exactly(f"aten.{name}.dims", x, dims)
    target = getattr(aten, name).dims
    assert declined(traced(lambda x: target(x, []), x))
    check(lambda x: target(x, []), numbers())


def test_counts() -> None:
    for dims in ([0, -1], [1], []):
        assert assert_imports_exactly("aten.count_nonzero.dim_IntList", numbers(3, 4, 5), dims)
    assert assert_imports_exactly("aten.count_nonzero.default", numbers(3, 4), -1)


FLOATING = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_moments(name: str, dtype: torch.dtype) -> None:
    def calls(x: torch.Tensor) -> list[Any]:
        dims: list[Any] = [[dim] for dim in dims_of(x)] + [[], None]
        return [
            ((dim,), {"correction": correction, "keepdim": keep})
            for dim in dims
            for correction, keep in ((0, True), (0.5, False), (None, True))
        ]

    try_all(f"aten.{name}.correction", dtype, calls)
    x = numbers(5, 6, dtype=dtype)
    for unbiased in (False, True):
        assert assert_imports_exactly(f"aten.{name}.default", x, unbiased)
        assert assert_imports_exactly(f"aten.{name}.default", x, unbiased=unbiased)
        assert assert_imports_exactly(f"aten.{name}.dim", x, [0], unbiased, True)
        assert assert_imports_exactly(f"aten.{name}.dim", x, [0], unbiased=unbiased, keepdim=True)
    assert assert_imports_exactly(f"aten.{name}.default", x)


@pytest.mark.parametrize("dtype", [*FLOATING, torch.int64])
def test_log_of_sum_of_exponentials(dtype: torch.dtype) -> None:
    try_all(
        "aten.logsumexp.default",
        dtype,
        lambda x: [(([dim], keep), {}) for dim in dims_of(x) for keep in (False, True)],
    )


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("order", [2, 1, 0, 3.5, float("inf"), float("-inf"), -1])
def test_norms(order: float, dtype: torch.dtype) -> None:
    def calls(x: torch.Tensor) -> list[Any]:
        dims: list[Any] = [[dim] for dim in dims_of(x)] + [[], None]
        return [((order, dim, keep), {}) for dim in dims for keep in (False, True)]

    shaped = [x for x in inputs(dtype) if x.shape]
    try_all("aten.linalg_vector_norm.default", dtype, calls, shaped)
    x = numbers(5, 6, dtype=dtype)
    assert assert_imports_exactly("aten.norm.Scalar", x, order)
    assert assert_imports_exactly("aten.norm.ScalarOpt_dim", x, order, [1], True)
    assert assert_imports_exactly("aten.linalg_vector_norm.default", x, order, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_scans(name: str, dtype: torch.dtype) -> None:
    if name == "logcumsumexp" and not dtype.is_floating_point:
        pytest.skip("eager has no such scan of integers")
    try_all(f"aten.{name}.default", dtype, lambda x: [((dim,), {}) for dim in dims_of(x)])


@pytest.mark.parametrize("dtype", FLOATING)
def test_softmax(dtype: torch.dtype) -> None:
    for name in ("_softmax", "_log_softmax"):
        try_all(f"aten.{name}.default", dtype, lambda x: [((d, False), {}) for d in dims_of(x)])
    try_all("aten._safe_softmax.default", dtype, lambda x: [((d,), {}) for d in dims_of(x)])
    for name in ("softmax.int", "log_softmax.int", "_safe_softmax.default"):
        for result in (None, torch.float32, torch.float64):
            assert assert_imports_exactly(f"aten.{name}", special(dtype), -1, result)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("name", ["_softmax_backward_data", "_log_softmax_backward_data"])
def test_softmax_gradients(name: str, dtype: torch.dtype) -> None:
    for shape in ((), (5,), (3, 4), (2, 3, 4), (0, 3)):
        grad, output = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
        for dim in (0, -1):
            assert assert_imports_exactly(f"aten.{name}.default", grad, output, dim, dtype)


def test_symbolic_sizes() -> None:
    def many(x: torch.Tensor) -> Any:
        return (
            aten.sum.dim_IntList(x, [0], True), aten.mean.dim(x, [-1]), aten.amax.default(x),
            aten.var_mean.correction(x, [1])[1], aten.cumsum.default(x, 1),
            aten._softmax.default(x, 1, False), aten.max.dim(x, 0)[1], aten.argmax.default(x),
            aten.linalg_vector_norm.default(x),
        )  # fmt: skip

    graph = check(many, numbers(5, 6), dynamic=True, others=((numbers(7, 3),), (numbers(2, 9),)))
    assert len(graph.ops) == 9


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


@pytest.mark.parametrize(
    "build",
    [
        lambda: reduction.Sum(tensor(3, 4), ()),
        lambda: reduction.Sum(tensor(3, 4), (1, 0)),
        lambda: reduction.Sum(tensor(3, 4), (2,)),
        lambda: reduction.Sum(tensor(3, 4), (-1,)),
        lambda: reduction.Mean(tensor(3, dtype=DType.I64), (0,)),
        lambda: reduction.ArgMax(tensor(3, 4, 5), (0, 1)),
        lambda: reduction.MaxOfAll(tensor(3, 4), (0,)),
        lambda: reduction.Variance(tensor(3, dtype=DType.I64), (0,)),
        lambda: reduction.Amax(tensor(3, dtype=DType.C64), (0,)),
        lambda: Softmax(tensor(3, dtype=DType.I64), 0),
        lambda: Softmax(tensor(3), 1),
    ],
)
def test_wrong_ops_cannot_be_built(build: Callable[[], Any]) -> None:
    with pytest.raises(CompileError):
        build()
