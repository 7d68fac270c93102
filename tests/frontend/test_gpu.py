"""Compiled functions on a real GPU, in all modes, keep eager's promises."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lynx
from lynx.backends.triton import launches, raise_failures
from lynx.records import RECORDS
from tests.backends.triton.graphs_of_models import MODELS, model_inputs
from tests.tools.compare import assert_as_accurate, gradients
from tests.tools.gpu import DEVICE, IS_REAL, needs_gpu, there, wait

pytestmark = needs_gpu
MODES = ["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    if not IS_REAL:
        monkeypatch.setenv("LYNX_CPU_KERNELS", "triton")
    monkeypatch.setenv("LYNX_STRICT", "1")
    yield
    torch._dynamo.reset()


def compiled(function: Any, mode: str = "default", **keywords: Any) -> Any:
    return torch.compile(function, backend="lynx", mode=mode, **keywords)


def launches_made() -> int:
    return sum(len(record.executable.native.launched) for record in RECORDS.graphs)


def reasons() -> list[str]:
    """Return why graphs were not recorded."""
    remarks = [remark for record in RECORDS.graphs for remark in record.remarks]
    return [remark.message for remark in remarks if remark.subject == "cuda-graph"]


def train(
    module: nn.Module, run: Callable[..., torch.Tensor], inputs: tuple[Any, ...], steps: int
) -> list[dict[str, Any]]:
    """Return result and gradients of steps of which each changes the parameters a little."""
    found = []
    for _ in range(steps):
        module.zero_grad()
        result = run(*inputs)
        result.square().sum().backward()
        found.append({"result": result.detach().clone(), **gradients(module)})
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.sub_(1e-3 * parameter.grad.sign())
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, mode: str) -> None:
    model, inputs = model_inputs(name)
    model, inputs = model.to(DEVICE), there(inputs)
    ours, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    steps = 5 if IS_REAL else 1
    wanted = train(model, model, inputs, steps)
    found = train(ours, compiled(ours, mode), inputs, steps)
    true = train(exact, exact, wide, 1)
    assert_as_accurate(found[0], wanted[0], true[0])
    for one, other in zip(found, wanted, strict=True):
        error = 5e-2 if name == "block_bf16" else 1e-2
        torch.testing.assert_close(one["result"], other["result"], rtol=error, atol=error)
    assert launches_made() > 0
    assert not (IS_REAL and reasons())


@pytest.mark.parametrize("mode", MODES)
def test_outputs_that_are_kept(mode: str) -> None:
    layer = nn.Linear(8, 8, device=DEVICE)
    run = compiled(lambda x: torch.tanh(layer(x)), mode)
    with torch.no_grad():
        inputs = [torch.randn(4, 8, device=DEVICE) for _ in range(8)]
        outputs = [run(x) for x in inputs]
        for x, y in zip(inputs, outputs, strict=True):
            torch.testing.assert_close(y, torch.tanh(layer(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_change(mode: str) -> None:
    def step(w: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
        m.lerp_(g, 0.1)
        w.sub_(0.1 * m / (m.abs().sqrt() + 1e-8))

    run = compiled(step, mode)
    given = [torch.randn(40, 7, device=DEVICE) for _ in range(3)]
    wanted = [tensor.clone() for tensor in given]
    with torch.no_grad():
        for _ in range(4):
            run(*given)
            step(*wanted)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * w, -1) + x.sum(0)

    run = compiled(function, dynamic=True)
    w = torch.randn(33, device=DEVICE)
    for rows in (2, 3, 64, 7):
        x = torch.randn(rows, 33, device=DEVICE)
        torch.testing.assert_close(run(x, w), function(x, w), rtol=1e-4, atol=1e-4)
    assert len(RECORDS.graphs) == 1


def test_numbers_on_the_cpu() -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x * scale, torch.tensor(-1.0)) + scale

    x, scale = torch.randn(5, 6, device=DEVICE), torch.tensor(0.5)
    for mode in MODES:
        run = compiled(function, mode)
        for _ in range(3):
            scale = scale + 1
            torch.testing.assert_close(run(x, scale), function(x, scale))


def test_tensors_of_both_in_one_graph() -> None:
    def function(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        limits = (lengths * 2).clamp(max=5)
        places = torch.arange(x.shape[1], device=x.device)
        return torch.where(places < limits.to(x.device)[:, None], x.exp(), 0.0), limits.cumsum(0)

    x, lengths = torch.randn(3, 6, device=DEVICE), torch.tensor([1, 2, 3])
    run = compiled(function, "reduce-overhead")
    for _ in range(3):
        for one, other in zip(run(x, lengths), function(x, lengths), strict=True):
            torch.testing.assert_close(one, other)


def run_and_wait(run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """Run, and hear of failed checks, of which a device tells later."""
    run(*inputs)
    raise_failures()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_an_index_out_of_range_is_told_and_the_device_goes_on(mode: str) -> None:
    embedding = nn.Embedding(4, 8, device=DEVICE)
    run = compiled(lambda index: torch.tanh(embedding(index)).sum(-1), mode)
    index = torch.tensor([0, 3], device=DEVICE)
    with torch.no_grad():
        good = [run(index).clone() for _ in range(3)][-1]
        with pytest.raises(IndexError, match="index out of range"):
            run_and_wait(run, torch.tensor([0, 4], device=DEVICE))
        torch.testing.assert_close(run(index), good)
    raise_failures()


@pytest.mark.skipif(not IS_REAL, reason="there are no streams")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_streams(mode: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.softmax(x @ x, -1) - x.mean()
        return x

    run = compiled(function, mode)
    given = [torch.randn(256, 256, device=DEVICE) for _ in range(2)]
    wanted = [function(x) for x in given]
    streams = [torch.cuda.Stream() for _ in given]
    wait()
    for _ in range(6):
        found = []
        for x, stream in zip(given, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(run(x))
        wait()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_devices_that_are_not_the_current_one() -> None:
    run = compiled(lambda x: torch.softmax(x, -1) * 2)
    for index in (1, 0):
        x = torch.randn(8, 32, device=f"cuda:{index}")
        torch.testing.assert_close(run(x), torch.softmax(x, -1) * 2)


@pytest.mark.skipif(not IS_REAL, reason="takes 6 GiB")
def test_more_elements_than_32_bits_count() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 10 << 30:
        pytest.skip("needs 10 GiB")
    x = torch.zeros(2**31 + 100, dtype=torch.int8, device=DEVICE)
    x[-1] = 5
    y = compiled(lambda t: t * 2 + 1)(x)
    assert y[-1].item() == 11
    assert y[:5].tolist() == [1] * 5
    assert int(y[2**31 - 2 : 2**31 + 2].sum()) == 4


def test_a_kernel_that_is_refused_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYNX_STRICT", "0")
    kind = launches.InterpretedKernel

    def refuse(*arguments: object) -> None:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(kind, "launch", refuse)
    monkeypatch.setattr("lynx.backends.triton.launch.TritonKernel.launch", refuse)
    x = torch.randn(5, 5, device=DEVICE)
    run = compiled(lambda x: x.exp() + 1)
    with pytest.warns(RuntimeWarning, match="does not run: RuntimeError: out of resource"):
        torch.testing.assert_close(run(x), x.exp() + 1)
    torch.testing.assert_close(run(x), x.exp() + 1)


def test_autocast() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    model = model.to(DEVICE)
    x = torch.randn(20, 32, device=DEVICE)
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=3e-2, atol=3e-2)


def test_sums_in_a_fixed_order_where_torch_is_told_so() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, 64, device=x.device).index_add(0, index, x.sin())

    x, index = torch.randn(500, 64, device=DEVICE), torch.randint(0, 3, (500,), device=DEVICE)
    torch.use_deterministic_algorithms(True)
    try:
        run = compiled(function)
        first = run(x, index)
        assert all(torch.equal(run(x, index), first) for _ in range(3))
        torch.testing.assert_close(first, function(x, index), rtol=1e-4, atol=1e-4)
    finally:
        torch.use_deterministic_algorithms(False)


def test_explain() -> None:
    text = str(lynx.explain(lambda x: torch.relu(x).exp(), torch.randn(3, 8, device=DEVICE)))
    assert "1 launch of 1 kernel" in text
