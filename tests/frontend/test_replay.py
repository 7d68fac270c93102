"""Compiled graphs replayed from recordings, with a recorder that stands for the device's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lynx.compiler
import lynx.replay
from lynx.compat import boxed
from lynx.ir import parse_graph
from lynx.ir.program import Program
from lynx.pass_context import pass_context
from lynx.passes import parse_pipeline
from lynx.records import RECORDS, CompiledGraph
from lynx.replay import fixed_inputs, replayed, why_not
from lynx.runtime.graphs import GraphedFunction
from lynx.settings import read_settings
from tests.runtime.test_graphs import FakeRecorder


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    yield
    torch._dynamo.reset()


def program(text: str) -> Program:
    graph = parse_graph(text)
    made = parse_pipeline("lower,plan-memory").run(graph, pass_context(graph))
    assert isinstance(made, Program)
    return made


ON_GPU = """
graph @g(%w: f32[4] on cuda:0 {static}, %x: f32[4] on cuda:0, %tangents_1: f32[4] on cuda:0) {
  %0 = mul %w, %x : f32[4] on cuda:0
  %1 = add %0, %tangents_1 : f32[4] on cuda:0
  return %0 mutates (%x: %1)
}
"""


def test_modes_set_what_they_promise() -> None:
    modes = {
        "default": (False, False),
        "reduce-overhead": (True, False),
        "max-autotune": (True, True),
        "max-autotune-no-cudagraphs": (False, True),
    }
    for mode, wanted in modes.items():
        found = read_settings(mode=mode, environment={})
        assert (found.cuda_graphs, found.autotune) == wanted
        assert found.pipeline == mode


def test_what_may_be_recorded() -> None:
    assert why_not(program(ON_GPU)) == ""
    near = ON_GPU.replace("%x: f32[4] on cuda:0", "%x: f32[] on cpu").replace(
        " mutates (%x: %1)", ""
    )
    assert why_not(program(near)) == "'mul' works on a tensor on cpu"
    effect = """
graph @g(%x: f32[4] on cuda:0) {
  %0 = aten @aten.relu.default(%x) {effect} : f32[4] on cuda:0
  return %0
}
"""
    assert "effect" in why_not(program(effect))


def test_which_inputs_keep_their_place() -> None:
    made = program(ON_GPU)
    assert fixed_inputs(made, "forward") == [0, 1]
    kept = program(ON_GPU.replace(" mutates (%x: %1)", ""))
    assert fixed_inputs(kept, "forward") == [0]
    assert fixed_inputs(kept, "backward") == [0, 1]


class Model(nn.Module):
    """Parameters, and something kept for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x)))).square().mean()


def train(model: nn.Module, run: Callable[..., torch.Tensor], zero: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(8):
        optimizer.zero_grad(set_to_none=zero)
        loss = run(torch.randn(6, 8, generator=torch.Generator().manual_seed(step)))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[FakeRecorder]:
    """Let everything be replayed, and give the recorders, one for each graph."""
    made: list[FakeRecorder] = []

    def replay(record: CompiledGraph) -> Any:
        made.append(FakeRecorder())
        found = replayed(record, made[-1])
        assert isinstance(found, GraphedFunction)
        return boxed(found)

    def compile_graph(*arguments: Any) -> Any:
        original(*arguments)
        return replay(RECORDS.graphs[-1])

    original = lynx.compiler._compile
    monkeypatch.setattr(lynx.replay, "why_not", lambda program: "")
    monkeypatch.setattr(lynx.compiler, "_compile", compile_graph)
    return made


@pytest.mark.parametrize("zero", [True, False])
def test_training_from_recordings(recorders: list[FakeRecorder], zero: bool) -> None:
    model = Model()
    ours = copy.deepcopy(model)
    compiled = torch.compile(ours, backend="lynx", options={"strict": True})
    wanted, found = train(model, model, zero), train(ours, compiled, zero)
    assert found == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(ours.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    forward, backward = recorders
    assert forward.replayed >= 6
    assert backward.replayed >= 5
    assert forward.recorded <= 2
    assert not [remark for record in RECORDS.graphs for remark in record.remarks
                if remark.subject == "cuda-graph"]  # fmt: skip


def test_generating_from_recordings_with_outputs_that_are_kept(
    recorders: list[FakeRecorder],
) -> None:
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="lynx", options={"strict": True})
    with torch.no_grad():
        inputs = [torch.randn(2, 4) for _ in range(8)]
        outputs = [compiled(x) for x in inputs]
        for x, y in zip(inputs, outputs, strict=True):
            torch.testing.assert_close(y, layer(x))
    assert sum(recorder.recorded for recorder in recorders) == 4
    reasons = [remark.message for record in RECORDS.graphs for remark in record.remarks]
    assert any("outputs of 4 calls are still alive" in reason for reason in reasons)


def test_inference_and_training_tensors_are_not_mixed(recorders: list[FakeRecorder]) -> None:
    compiled = torch.compile(lambda x: x.exp() * 2, backend="lynx", options={"strict": True})
    x = torch.randn(3)
    for _ in range(3):
        with torch.inference_mode():
            compiled(x)
        with torch.no_grad():
            assert not compiled(x).is_inference()
    assert recorders
