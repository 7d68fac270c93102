"""Compiled functions whose kernels the host launches keep eager's promises.

Triton makes the kernels as it would for a GPU, and its interpreter runs them on CPU tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lynx
from lynx.backends.triton import launches
from lynx.backends.triton.module import PrintedModule
from lynx.ir import UsageError
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Kernel
from lynx.records import RECORDS
from lynx.settings import read_settings

OPTIONS = {"strict": True, "cpu_kernels": "triton"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    yield
    torch._dynamo.reset()


def launched(function: Any, **keywords: Any) -> Any:
    return torch.compile(function, backend="lynx", options=OPTIONS, **keywords)


def kernels() -> list[str]:
    """Return the names of the kernels that were launched, those of each graph in order."""
    natives = [record.executable.native for record in RECORDS.graphs]
    assert not any(native.segments for native in natives)
    return [step.kernel.name for native in natives for step, _ in native.launched.values()]


def test_a_model_trains_as_with_eager() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    ours = copy.deepcopy(model)
    x = torch.randn(5, 8)
    for module, run in ((model, model), (ours, launched(ours))):
        module.zero_grad()
        run(x).softmax(-1).square().sum().backward()
    for one, other in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert len(kernels()) >= 3


def test_inputs_are_changed_in_place() -> None:
    def step(w: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
        m.lerp_(g, 0.1)
        w.sub_(0.1 * m / (m.abs().sqrt() + 1e-8))

    run = launched(step)
    given = [torch.randn(6, 4) for _ in range(3)]
    wanted = [tensor.clone() for tensor in given]
    addresses = [tensor.data_ptr() for tensor in given]
    with torch.no_grad():
        for _ in range(2):
            run(*given)
            step(*wanted)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert [tensor.data_ptr() for tensor in given] == addresses
    assert kernels()


def test_an_index_out_of_range_is_an_index_error() -> None:
    embedding = nn.Embedding(4, 8)
    run = launched(lambda index: torch.tanh(embedding(index)).sum(-1))
    good = run(torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="index out of range"):
        run(torch.tensor([0, 4]))
    assert torch.equal(run(torch.tensor([0, 3])), good)


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * w, -1) + x.sum(0)

    run = launched(function, dynamic=True)
    w = torch.randn(12)
    for rows in (2, 3, 7, 30):
        x = torch.randn(rows, 12)
        torch.testing.assert_close(run(x, w), function(x, w))
    assert len(RECORDS.graphs) == 1
    assert any(
        launch.symbols for _, launch in RECORDS.graphs[0].executable.native.launched.values()
    )


def test_what_torch_lays_out_is_read_as_it_lies() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = torch.sort(x.t(), dim=0)
        return torch.exp(values[1:].t()) + x[:, 1:], places * 2, torch.relu(values)

    run = launched(function)
    x = torch.randn(5, 7)
    for one, other in zip(run(x), function(x), strict=True):
        torch.testing.assert_close(one, other)
    assert kernels()


def test_views_and_copies_of_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y.transpose(0, 1).reshape(12, 2) + 1, y[1:, ::2].flatten().cumsum(0)

    run = launched(function)
    x = torch.randn(4, 6)
    for one, other in zip(run(x), function(x), strict=True):
        torch.testing.assert_close(one, other)


def test_numbers_that_lie_in_tensors() -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x * scale, torch.tensor(-1.0)) + scale.exp()

    x, scale = torch.randn(3, 4), torch.tensor(0.5)
    torch.testing.assert_close(launched(function)(x, scale), function(x, scale))


def test_launches_count_as_no_change_of_a_tensor() -> None:
    x = torch.randn(4, requires_grad=True)
    run = launched(lambda y: torch.relu(y) * 2)
    y = x.exp()
    result = run(y)
    torch.relu(result).sum().backward()  # which keeps the result for its own backward
    torch.testing.assert_close(x.grad, 2 * y.detach())


def break_exponentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton have no form of kernels with an exponential."""
    original = launches.print_module

    def printed(kernel: Kernel, **options: bool) -> PrintedModule:
        if "exp" in kernel.name:
            raise CompileError("no-triton", "there is no such thing")
        return original(kernel, **options)

    monkeypatch.setattr(launches, "print_module", printed)


def sums_of_functions(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.exp().cumsum(0)).cumsum(0)


def test_a_kernel_that_does_not_build_is_left_to_torch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_exponentials(monkeypatch)
    x = torch.randn(5, 5)
    run = torch.compile(sums_of_functions, backend="lynx", options={**OPTIONS, "strict": False})
    with pytest.warns(RuntimeWarning, match="kernel 'exp' has no Triton form") as heard:
        torch.testing.assert_close(run(x), sums_of_functions(x))
    assert len([w for w in heard if "lynx" in str(w.message)]) == 1
    assert kernels() == ["tanh"]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"not-native.*no Triton form"):
        launched(sums_of_functions)(x)


@pytest.mark.parametrize("strict", [False, True])
def test_a_kernel_that_is_refused_at_its_launch(
    monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(launches.InterpretedKernel, "launch", refuse)
    x = torch.randn(5, 5)
    run = torch.compile(
        lambda x: x.exp() + 1, backend="lynx", options={**OPTIONS, "strict": strict}
    )
    if strict:
        with pytest.raises(CompileError, match="does not run"):
            run(x)
        return
    with pytest.warns(RuntimeWarning, match="does not run: RuntimeError: out of resource"):
        torch.testing.assert_close(run(x), x.exp() + 1)
    torch.testing.assert_close(run(x), x.exp() + 1)  # here a warning would be an error


def test_sums_in_a_fixed_order_where_torch_is_told_so() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, 4).index_add(0, index, x.sin())

    x, index = torch.randn(5, 4), torch.tensor([0, 2, 0, 1, 0])
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(launched(function)(x, index), function(x, index))
    finally:
        torch.use_deterministic_algorithms(False)


def test_explain_lists_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYNX_CPU_KERNELS", "triton")
    text = str(lynx.explain(lambda x: torch.relu(x).cumsum(0).exp(), torch.randn(3, 8)))
    assert "2 launches of 2 kernels" in text
    assert "clamp over 24, 192 B" in text


def test_no_kernels_on_request_and_no_warning() -> None:
    run = torch.compile(
        lambda x: x.exp() + 1, backend="lynx", options={"strict": True, "cpu_kernels": "none"}
    )
    x = torch.randn(3)
    assert torch.equal(run(x), x.exp() + 1)
    assert kernels() == []


def test_an_unknown_maker_of_kernels() -> None:
    with pytest.raises(UsageError, match="option 'cpu_kernels' takes c, triton, none, got 'cuda'"):
        read_settings({"cpu_kernels": "cuda"}, environment={})
