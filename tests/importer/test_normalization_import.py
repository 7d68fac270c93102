"""Normalization operators import to whole ops that give eager's bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate, run
from lynx.ir.core import Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    GroupNorm,
    LayerNorm,
    RmsNormBackward,
)
from lynx.ir.ops.normalization import LayerNormBackward as LayerBackward
from lynx.ir.types import DType, OpaqueType, TensorType
from tests.importer.functions import assert_equal, aten, check, declined, numbers, traced
from tests.importer.one_operator import assert_imports_exactly

FLOATING = (torch.float32, torch.float64, torch.bfloat16)


def some(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return numbers(*shape, dtype=dtype, seed=seed)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(("shape", "rank"), [((5, 6), 1), ((2, 3, 4), 2), ((7,), 1), ((0, 4), 1)])
def test_layer_norm(shape: tuple[int, ...], rank: int, dtype: torch.dtype) -> None:
    inner = shape[len(shape) - rank :]
    x, weight, bias = (
        some(*shape, dtype=dtype),
        some(*inner, dtype=dtype),
        some(*inner, dtype=dtype),
    )
    check(lambda x, w, b: aten.native_layer_norm.default(x, inner, w, b, 1e-5), x, weight, bias)
    check(lambda x, w: aten.native_layer_norm.default(x, inner, w, None, 1e-5), x, weight)
    check(lambda x, b: aten.native_layer_norm.default(x, inner, None, b, 1e-5), x, bias)
    spread = some(*shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    check(
        lambda x: aten.native_layer_norm.default(x, inner, None, None, 0.1), x, others=((spread,),)
    )


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
def test_layer_norm_gradients(mask: tuple[bool, bool, bool], dtype: torch.dtype) -> None:
    x, grad = some(3, 5, 6, dtype=dtype), some(3, 5, 6, dtype=dtype, seed=1)
    weight, bias = some(6, dtype=dtype), some(6, dtype=dtype, seed=2)
    _, mean, rstd = aten.native_layer_norm.default(x, [6], weight, bias, 1e-5)

    def gradients(g: Any, x: Any, m: Any, r: Any, w: Any, b: Any) -> Any:
        results = aten.native_layer_norm_backward.default(g, x, [6], m, r, w, b, mask)
        return [result for result, wanted in zip(results, mask, strict=True) if wanted]

    graph = check(gradients, grad, x, mean, rstd, weight, bias)
    if any(mask):
        (op,) = graph.ops
        assert isinstance(op, LayerBackward)
        absent = [result.type == OpaqueType("none") for result in op.results]
        assert absent == [not wanted for wanted in mask]


def test_layer_norm_gradient_without_weights() -> None:
    x, grad = some(5, 6), some(5, 6, seed=1)
    _, mean, rstd = aten.native_layer_norm.default(x, [6], None, None, 1e-5)

    def gradient(g: Any, x: Any, m: Any, r: Any) -> Any:
        mask = [True, False, False]
        return aten.native_layer_norm_backward.default(g, x, [6], m, r, None, None, mask)[0]

    graph = check(gradient, grad, x, mean, rstd)
    apart = torch.empty(5, 2)[:, :1].copy_(mean)
    actual, _ = evaluate(graph, (grad, x, apart, rstd))
    assert_equal(actual, (gradient(grad, x, mean, rstd),))


def test_types_on_which_tracing_and_eager_disagree_run_through_torch() -> None:
    x, weight = some(5, 6, dtype=torch.bfloat16), some(6)
    graph = traced(lambda x, w: aten.native_layer_norm.default(x, [6], w, None, 1e-5)[0], x, weight)
    assert declined(graph)


@pytest.mark.parametrize("dtype", FLOATING)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = some(2, 5, 6, dtype=dtype), some(6, dtype=dtype)
    for eps in (None, 1e-3):
        assert assert_imports_exactly("aten._fused_rms_norm.default", x, [6], weight, eps)
        assert assert_imports_exactly("aten._fused_rms_norm.default", x, [5, 6], None, eps)


def test_rms_norm_gradients_are_those_of_autograd() -> None:
    x, weight, grad = (
        some(5, 6).requires_grad_(),
        some(6, seed=1).requires_grad_(),
        some(5, 6, seed=2),
    )
    result, rstd = aten._fused_rms_norm.default(x, [6], weight, 1e-5)
    expected = torch.autograd.grad(result, (x, weight), grad)
    op = RmsNormBackward(tensor(5, 6), tensor(5, 6), tensor(5, 1), tensor(6), 1)
    values = dict(zip(op.operands, (grad, x, rstd, weight), strict=True))
    with torch.no_grad():
        torch.testing.assert_close(run(op, values, {}, {}), expected)


def images(dtype: torch.dtype) -> list[torch.Tensor]:
    return [
        some(2, 4, 5, dtype=dtype),
        some(3, 4, dtype=dtype),
        some(2, 4, 3, 5, dtype=dtype),
        some(2, 4, 3, 5, dtype=dtype).to(memory_format=torch.channels_last),
    ]


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("index", range(4))
def test_group_norm(index: int, dtype: torch.dtype) -> None:
    x = images(dtype)[index]
    weight, bias = some(4, dtype=dtype), some(4, dtype=dtype, seed=1)
    sizes = (x.shape[0], 4, x[0, 0].numel())
    norm = aten.native_group_norm.default
    check(lambda x, w, b: norm(x, w, b, *sizes, 2, 1e-5), x, weight, bias)
    check(lambda x: norm(x, None, None, *sizes, 4, 1e-5), x)
    _, mean, rstd = norm(x, weight, bias, *sizes, 2, 1e-5)
    backward = aten.native_group_norm_backward.default
    for mask in itertools.product([True, False], repeat=3):
        if not any(mask) or (index == 3 and not mask[0]):
            continue  # eager crashes without the gradient of an input whose channels come last

        def gradients(g: Any, x: Any, m: Any, r: Any, w: Any, mask: tuple[bool, ...] = mask) -> Any:
            results = backward(g, x, m, r, w, *sizes, 2, mask)
            return [result for result, wanted in zip(results, mask, strict=True) if wanted]

        check(gradients, torch.ones_like(x), x, mean, rstd, weight)


def test_group_norm_of_any_layout() -> None:
    x = some(2, 4, 6)
    graph = traced(lambda x: aten.native_group_norm.default(x, None, None, 2, 4, 6, 2, 1e-5), x)
    crossed = x.transpose(0, 2).contiguous().transpose(0, 2)
    actual, _ = evaluate(graph, (crossed,))
    assert_equal(actual, aten.native_group_norm.default(x, None, None, 2, 4, 6, 2, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool, index: int, dtype: torch.dtype) -> None:
    x = images(dtype)[index]
    weight, bias, mean = (some(4, dtype=dtype, seed=seed) for seed in range(3))
    var = some(4, dtype=dtype).abs() + 1

    def functional(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        norm = aten._native_batch_norm_legit_functional.default
        return norm(x, w, b, m, v, training, 0.1, 1e-5)

    graph = check(functional, x, weight, bias, mean, var)
    assert len(graph.ops) == 1
    if training:
        norm = aten._native_batch_norm_legit.no_stats
        check(lambda x, w: norm(x, w, None, True, 0.1, 1e-5), x, weight)
        check(
            lambda x: aten.native_batch_norm.default(x, None, None, None, None, True, 0.1, 1e-5), x
        )
    else:
        no_training = aten._native_batch_norm_legit_no_training.default
        check(lambda x, m, v: no_training(x, None, None, m, v, 0.1, 1e-5), x, mean, var)
        norm = aten.native_batch_norm.default
        check(lambda x, m, v: norm(x, None, None, m, v, False, 0.1, 1e-5), x, mean, var)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (True, True, False)])
def test_batch_norm_gradients(mask: tuple[bool, bool, bool], training: bool, index: int) -> None:
    x = images(torch.float32)[index]
    weight, mean, var = some(4), some(4, seed=1), some(4, seed=2).abs() + 1
    saved = (some(4, seed=3), some(4, seed=4).abs() + 1) if training else (x.new_zeros(0),) * 2

    def gradients(g: Any, x: Any, w: Any, m: Any, v: Any, sm: Any, si: Any) -> Any:
        backward = aten.native_batch_norm_backward.default
        results = backward(g, x, w, m, v, sm, si, training, 1e-5, mask)
        return [result for result, wanted in zip(results, mask, strict=True) if wanted]

    graph = check(gradients, some(*x.shape, seed=5), x, weight, mean, var, *saved)
    assert isinstance(graph.ops[0], BatchNormBackward)


def test_symbolic_sizes() -> None:
    def norms(x: torch.Tensor) -> Any:
        n, s = x.shape
        y = x.unsqueeze(1).expand(n, 4, s)
        return (
            *aten.native_layer_norm.default(x, [s], None, None, 1e-5),
            *aten.native_group_norm.default(y.clone(), None, None, n, 4, s, 2, 1e-5),
        )

    check(norms, some(5, 8), dynamic=True, others=((some(3, 7),), (some(2, 3),)))


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


@pytest.mark.parametrize(
    "build",
    [
        lambda: LayerNorm(tensor(3, 4), tensor(3), None, 1, 1e-5),
        lambda: LayerNorm(tensor(3, 4), None, None, 2, 1e-5),
        lambda: LayerNorm(tensor(3, 4), tensor(4, dtype=DType.BF16), None, 1, 1e-5),
        lambda: LayerNorm(tensor(3, 4, dtype=DType.I64), None, None, 1, 1e-5),
        lambda: LayerBackward(
            tensor(3, 4), tensor(3, 4), tensor(3, 1), tensor(3, 1), None, None, 1
        ),
        lambda: GroupNorm(tensor(3, 4), None, None, 3, 1e-5),
        lambda: BatchNorm(tensor(3, 4), None, None, None, None, 0.1, 1e-5, training=False),
        lambda: BatchNorm(tensor(3, 4), None, None, tensor(4), None, 0.1, 1e-5),
    ],
)
def test_wrong_ops_cannot_be_built(build: Callable[[], Any]) -> None:
    with pytest.raises(CompileError):
        build()
