"""Compiled functions with native segments keep eager's promises."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lynx
from lynx.backends.c import has_compiler, low_precision_products
from lynx.ir.kernel import Kernel
from lynx.ir.native import ProductCall
from lynx.passes.fusion import KernelFactory
from lynx.records import RECORDS
from lynx.runtime import release_memory

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    yield
    torch._dynamo.reset()


def test_inputs_that_are_only_marked_as_negated() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return x * 2 + x.sum()

    compiled = torch.compile(function, backend="lynx", options={"strict": True})
    for x in (torch._neg_view(torch.randn(8)), torch.randn(8, dtype=torch.cfloat).conj().imag):
        assert x.is_neg()
        one, other = x.clone(), torch._neg_view(-x)
        assert other.is_neg()
        wanted = function(one)
        assert torch.allclose(compiled(other), wanted)
        assert torch.allclose(other, one)


def test_an_index_out_of_range_is_an_index_error() -> None:
    embedding = nn.Embedding(4, 8)

    def function(index: torch.Tensor) -> torch.Tensor:
        return torch.tanh(embedding(index)).sum(-1)

    compiled = torch.compile(function, backend="lynx", options={"strict": True})
    good = compiled(torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="index out of range"):
        compiled(torch.tensor([0, 4]))
    assert torch.equal(compiled(torch.tensor([0, 3])), good)


def test_a_step_of_an_optimizer_changes_its_tensors_in_place() -> None:
    def step(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> None:
        m.lerp_(g, 0.1)
        v.copy_(v * 0.99 + g * g * 0.01)
        w.sub_(0.1 * m / (v.sqrt() + 1e-8))

    compiled = torch.compile(step, backend="lynx", options={"strict": True})
    given = [torch.randn(16, 4), torch.randn(16, 4), torch.rand(16, 4), torch.randn(16, 4)]
    wanted = [tensor.clone() for tensor in given]
    addresses = [tensor.data_ptr() for tensor in given]
    with torch.no_grad():
        for _ in range(3):
            compiled(*given)
            step(*wanted)
    assert all(map(torch.allclose, given, wanted))
    assert [tensor.data_ptr() for tensor in given] == addresses
    (record,) = RECORDS.graphs
    assert not [remark for remark in record.remarks if remark.subject == "mutation"]


def test_explain_lists_kernels_and_products() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    text = str(lynx.explain(model, torch.randn(3, 8)))
    assert "segment_0: " in text
    assert "product of f32, 3 x 8 x 16" in text


def test_kernels_that_do_not_build_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LYNX_CACHE", "0")
    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend="lynx")
    x = torch.randn(5)
    with pytest.warns(RuntimeWarning, match=r"no C compiler|runs a part of a graph through torch"):
        assert torch.allclose(compiled(x), torch.tanh(x) * 2)


def test_an_operator_that_returns_another_type_than_its_fake_form() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.smooth_l1_loss(x, y)

    x = torch.randn(40, requires_grad=True)
    y = torch.randn(40, dtype=torch.bfloat16, requires_grad=True)
    expected = torch.autograd.grad(function(x, y), (x, y))
    compiled = torch.compile(function, backend="lynx", options={"strict": True})
    actual = torch.autograd.grad(compiled(x, y), (x, y))
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype is theirs.dtype
        assert torch.allclose(ours, theirs)


def test_operators_that_look_at_all_of_a_memory() -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).cumsum(0)

    def diagonal(x: torch.Tensor) -> torch.Tensor:
        return torch.diag(x).sum() + torch.diagonal(x, offset=2).sum()

    release_memory()
    torch.compile(odd, backend="lynx", options={"strict": True})(torch.randn(1001))
    x = torch.randn(10, 10, requires_grad=True)
    torch.compile(diagonal, backend="lynx", options={"strict": True})(x).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.eye(10) + torch.eye(10).roll(2, 1).triu(2))


def break_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every kernel with a sine have an instruction twice."""

    def broken(factory: KernelFactory, *arguments: Any) -> Kernel:
        kernel = make(factory, *arguments)
        if "sin" not in kernel.name:
            return kernel
        return dataclasses.replace(kernel, body=(*kernel.body, kernel.body[-1]))

    make = KernelFactory.kernel_of
    monkeypatch.setattr(KernelFactory, "kernel_of", broken)


def sine_and_sums(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.sin().cumsum(0)).cumsum(0)


def test_a_kernel_that_breaks_an_invariant_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch)
    x = torch.randn(8, 8)
    with pytest.warns(RuntimeWarning, match=r"invalid-kernel.*occurs twice"):
        actual = torch.compile(sine_and_sums, backend="lynx")(x)
    assert torch.allclose(actual, sine_and_sums(x))
    native = RECORDS.graphs[-1].executable.native
    assert [kernel.name for kernel in native.kernels] == ["tanh"]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"not-native.*invalid-kernel"):
        torch.compile(sine_and_sums, backend="lynx", options={"strict": True})(x)


def test_kernels_are_not_looked_at_without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch)
    compiled = torch.compile(
        sine_and_sums, backend="lynx", options={"strict": True, "verify": False}
    )
    x = torch.randn(8, 8)
    assert torch.allclose(compiled(x), sine_and_sums(x))


class Layers(nn.Module):
    """Products with and without bias, of a transposed weight, and of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 40), nn.Linear(40, 9, bias=False)
        self.table = nn.Parameter(torch.randn(9, 24) / 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.last(torch.nn.functional.gelu(self.first(x)))
        scores = torch.bmm(hidden, x.transpose(1, 2)[:, :9])
        return scores @ self.table.sum(1)[: scores.shape[2]] + hidden @ self.table.sum(1)


@pytest.mark.parametrize("products", ["own", "library"])
def test_products_of_bf16_and_their_gradients(products: str) -> None:
    exact = Layers().double()
    eager, ours = (copy.deepcopy(exact).bfloat16() for _ in range(2))
    for model in (eager, ours):  # the same numbers in all three
        model.load_state_dict(exact.state_dict())
    exact.load_state_dict(eager.state_dict())
    compiled = torch.compile(
        ours, backend="lynx", options={"strict": True, "products": products}, dynamic=True
    )
    for batch, length in ((2, 9), (3, 9), (5, 9)):
        x = torch.randn(batch, length, 24).bfloat16()
        results = []
        for model, given in ((exact, x.double()), (eager, x), (compiled, x)):
            model.zero_grad()
            out = model(given)
            out.double().square().sum().backward()
            results.append([out, *(p.grad for p in model.parameters())])
        for wanted, theirs, own in zip(*results, strict=True):
            assert own.dtype is torch.bfloat16
            assert own.stride() == theirs.stride()
            errors = [(part.double() - wanted).abs().max() for part in (own, theirs)]
            assert errors[0] <= 2 * errors[1] + 0.01 * wanted.abs().max()
    native = RECORDS.graphs[0].executable.native
    calls = [call for placed in native.segments for call in placed.segment.calls]
    multiplied = {call.dtype.value for call in calls if isinstance(call, ProductCall)}
    assert ("bf16" in multiplied) == bool(low_precision_products(products, None))
