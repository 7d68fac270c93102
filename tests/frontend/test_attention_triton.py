"""Attention that models write, computed by Triton's kernels as for a GPU, in its interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import lynx
from lynx.backends.triton.attention_launch import AttentionKernel
from lynx.operators import attention
from lynx.records import RECORDS


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    RECORDS.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


OPTIONS = {"strict": True, "cache": False, "cpu_kernels": "triton"}


def launched() -> list[str]:
    natives = [record.executable.native for record in RECORDS.graphs]
    assert not any(native.failures for native in natives)
    return [step.name for native in natives for step, _ in native.launched.values()]


def check(model: Any, *inputs: torch.Tensor, rtol: float = 1e-4, **how: Any) -> None:
    """Compare a compiled model with eager, forward and backward."""
    compiled = torch.compile(model, backend="lynx", options=OPTIONS, **how)
    found, expected = compiled(*inputs), model(*inputs)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol)
    sources = [x for x in inputs if x.requires_grad]
    if sources:
        grads = [torch.autograd.grad(result.sin().sum(), sources) for result in (found, expected)]
        torch.testing.assert_close(*grads, rtol=10 * rtol, atol=rtol)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ v


@pytest.mark.parametrize("dynamic", [False, True])
def test_causal(dynamic: bool) -> None:
    given = [torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(3)]
    check(causal, *given, dynamic=dynamic)
    assert launched() == ["attention", "attention_backward"]


def test_grouped_queries_with_a_learned_bias_in_low_precision() -> None:
    q = torch.randn(1, 4, 9, 8, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(1, 2, 9, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    bias = torch.randn(4, 9, 9, dtype=torch.bfloat16, requires_grad=True)

    def model(q: Any, k: Any, v: Any, bias: Any) -> Any:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return torch.softmax((q @ k.mT * 0.3 + bias).float(), -1).to(v.dtype) @ v

    check(model, q, k, v, bias, rtol=2e-2)
    assert "attention" in launched()
    assert "attention_backward" in launched()


def test_layers_that_are_alike_are_compiled_once() -> None:
    given = [torch.randn(1, 2, 12, 8) for _ in range(3)]

    def model(q: Any, k: Any, v: Any) -> Any:
        return causal(causal(q, k, v), k, v)

    check(model, *given)
    assert launched() == ["attention", "attention"]
    (native,) = (record.executable.native for record in RECORDS.graphs)
    first, second = (launch.run for _, launch in native.launched.values())
    assert first is second
    assert isinstance(first.inner, AttentionKernel)


def test_what_no_kernel_computes_is_unfused_with_a_reason() -> None:
    q = torch.randn(1, 2, 6, 8, dtype=torch.float64)

    def model(q: Any) -> Any:
        return attention(q, q, q)[0]

    check(model, q)
    assert "attention" not in launched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LYNX_CPU_KERNELS", "triton")
        assert "attend to no f64" in str(lynx.explain(model, q))


def test_gradients_that_would_be_summed_in_any_order_are_unfused() -> None:
    q = torch.randn(2, 2, 6, 8, requires_grad=True)
    bias = torch.randn(6, 6, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        check(lambda q, b: torch.softmax(q @ q.mT + b, -1) @ q, q, bias)
        assert launched().count("attention_backward") == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_where_logarithms_of_denominators_are_large() -> None:
    """They come from sums that are computed once more, not from logarithms that lost digits."""

    def model(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax((q @ k.mT * 3000.0).clamp(-200.0, 200.0), -1) @ v

    given = [torch.randn(1, 2, 12, 8, requires_grad=True) for _ in range(3)]
    wide = [x.detach().double().requires_grad_() for x in given]
    grad = torch.randn(1, 2, 12, 8)
    exact = torch.autograd.grad(model(*wide), wide, grad.double())
    eager = torch.autograd.grad(model(*given), given, grad)
    compiled = torch.compile(model, backend="lynx", options=OPTIONS)
    found = torch.autograd.grad(compiled(*given), given, grad)
    for ours, theirs, reference in zip(found, eager, exact, strict=True):
        unit = torch.finfo(torch.float32).eps * float(reference.abs().max())
        assert (ours - reference).abs().max() <= 2 * (theirs - reference).abs().max() + 2 * unit
    assert launched() == ["attention", "attention_backward"]
