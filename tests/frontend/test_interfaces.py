"""Options, modes, settings, the command line, explanations, and what failures lead to."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lynx
import lynx.compiler
from lynx.__main__ import _summary, main
from lynx.passes import PASSES, PassContext
from lynx.records import RECORDS
from lynx.settings import Settings, describe, read_settings
from tests.conftest import run_file


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).tanh().sum(0)


def test_options_are_checked_before_anything_is_compiled() -> None:
    with pytest.raises(Exception, match=r"unknown option 'pipelin'; did you mean 'pipeline'\?"):
        torch.compile(function, backend="lynx", options={"pipelin": "default"})(torch.ones(2))
    with pytest.raises(Exception, match=r"option 'strict' takes bool, got 1"):
        torch.compile(function, backend="lynx", options={"strict": 1})(torch.ones(2))
    with pytest.raises(lynx.UsageError, match=r"option 'debug' takes 0 to 4, got 5"):
        read_settings({"debug": 5}, environment={})
    with pytest.raises(lynx.UsageError, match=r"unknown mode 'fast'"):
        read_settings(mode="fast", environment={})


@pytest.mark.parametrize("bad", ["canonicalise", "fold-constants{max-byte=3}", "cse,,dce"])
def test_a_malformed_pipeline_is_an_error_with_a_caret(bad: str) -> None:
    with pytest.raises(Exception, match=r"\^"):
        torch.compile(function, backend="lynx", options={"pipeline": bad})(torch.ones(2))


@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_modes(mode: str) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(function, backend="lynx", mode=mode)(x), function(x))


def test_settings_from_the_environment_and_from_options() -> None:
    settings = read_settings(environment={"LYNX_DEBUG": "2", "LYNX_STRICT": "on"})
    assert (settings.debug, settings.strict) == (2, True)
    assert read_settings({"debug": 1}, environment={"LYNX_DEBUG": "2"}).debug == 1
    for text in ("much", "²", "-1", "1.5", ""):
        with pytest.raises(lynx.UsageError, match=f"LYNX_DEBUG takes a number, got '{text}'"):
            read_settings(environment={"LYNX_DEBUG": text})
    with pytest.raises(lynx.UsageError, match="LYNX_DEBUG takes 0 to 4, got 7"):
        read_settings(environment={"LYNX_DEBUG": "7"})
    with pytest.raises(lynx.UsageError, match=r"LYNX_PRODUCTS takes auto, .*, got 'mine'"):
        read_settings(environment={"LYNX_PRODUCTS": "mine"})
    assert "LYNX_DUMP_DIR" in describe()


def test_variables_that_are_no_settings_give_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="no setting LYNX_DEBUGG; did you mean 'LYNX_DEBUG'"):
        read_settings(environment={"LYNX_DEBUGG": "2"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_settings(environment={"LYNX_TEST_PROGRAMS": "20", "LYNX_FUZZ": "1", "DEBUG": "1"})


def test_debug_ladder(capfd: pytest.CaptureFixture[str]) -> None:
    torch.compile(function, backend="lynx", options={"debug": 4})(torch.ones(2, 2))
    shown = capfd.readouterr().err
    assert "_inference: " in shown
    assert "plan-memory" in shown
    assert "multiply" in shown or "mul" in shown
    assert "def run_inference(args):" in shown


def test_dumps_can_be_fed_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"dump_dir": str(tmp_path)}
    torch.compile(function, backend="lynx", options=options)(torch.ones(2, 2))
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "00-input.lynx"
    assert any("lower" in name for name in names)
    assert main(["opt", str(folder / "00-input.lynx"), "-p", "canonicalize,cse"]) == 0
    assert "graph @inference" in capsys.readouterr().out
    assert main(["run", str(folder / "00-input.lynx"), "--source"]) == 0
    shown = capsys.readouterr().out
    assert "off from the reference by " in shown
    assert "static void kernel0_" in shown
    assert "fresh" in shown


class Constants(nn.Module):
    """A constant that no text holds, memory that is used twice, numbers that are drawn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([float(i) for i in range(40)])
        return nn.functional.dropout((x.softmax(-1) * scale).cumsum(0), 0.5) @ x.mT


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_dump_runs_and_is_a_test(
    dynamic: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"dump_dir": str(tmp_path)}
    compiled = torch.compile(Constants(), backend="lynx", options=options, dynamic=dynamic)
    compiled(torch.randn(6, 40))
    files = sorted(tmp_path.glob("*/*.lynx"))
    assert any(path.name.endswith("-lower.lynx") for path in files)
    for path in files:
        assert run_file(path, path.read_text()) == []
        assert main(["run", str(path)]) == 0
        shown = capsys.readouterr().out
        (off,) = re.findall("off from the reference by (.*)", shown)
        assert float(off) < 1e-3, path
        assert "arena" in shown


def test_further_passes_on_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"dump_dir": str(tmp_path)}
    torch.compile(Constants(), backend="lynx", options=options)(torch.randn(6, 40))
    (lowered,) = tmp_path.glob("*/*-lower.lynx")
    assert "  arena cpu: " not in lowered.read_text()
    assert main(["opt", str(lowered)]) == 0
    assert "  arena cpu: " in capsys.readouterr().out
    assert main(["opt", str(lowered), "-p", "cse"]) == 1
    assert "'cse' requires a graph" in capsys.readouterr().err
    (given,) = tmp_path.glob("*/00-input.lynx")
    assert main(["run", str(given), "-p", "cse"]) == 1
    assert "'run' takes a pipeline that lowers to a program" in capsys.readouterr().err


def test_a_function_that_no_text_holds_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.lynx"
    path.write_text(
        'graph @f(%x: f32[2]) {\n  %0 = aten @higher_order(#resource("body"), %x) : f32[2]\n'
        "  return %0\n}\n"
    )
    assert main(["run", str(path)]) == 1
    assert "resource 'body' of 'higher_order' is no tensor" in capsys.readouterr().err


def test_command_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(tmp_path / "missing.lynx")]) == 1
    assert "cannot read" in capsys.readouterr().err
    broken = tmp_path / "broken.lynx"
    broken.write_text("graph @f(%x: f32[2]) {\n  %0 = exq %x : f32[2]\n  return %0\n}\n")
    assert main(["opt", str(broken)]) == 1
    shown = capsys.readouterr().err
    assert "broken.lynx:2" in shown
    assert "did you mean" in shown
    assert "^" in shown
    assert main(["passes"]) == 0
    assert "canonicalize" in capsys.readouterr().out


def test_settings_stand_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(dataclasses.fields(Settings))
    assert len({line.index("  LYNX_") for line in lines}) == 1
    starts = {
        line.index(s.metadata["help"])
        for line, s in zip(lines, dataclasses.fields(Settings), strict=True)
    }
    assert len(starts) == 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        torch._dynamo.graph_break()
        return torch.linalg.matrix_exp(self.head(x) @ self.head.weight)


def test_explain() -> None:
    model, x = Model(), torch.randn(8, 8)
    state = torch.get_rng_state()
    explanation = lynx.explain(model, x)
    shown = str(explanation)
    assert len(explanation.breaks) == 1
    assert "test_interfaces.py" in explanation.breaks[0][1]
    kinds = [record.kind for record in explanation.graphs]
    assert kinds.count("forward") == 2
    assert kinds.count("backward") == 2
    assert any(target == "aten.linalg_matrix_exp.default" for target, _, _ in explanation.fallbacks)
    assert "layer_norm" in shown
    assert "arena on cpu" in shown
    assert shown.startswith("4 graphs, 1 graph break\n")
    assert "kept for backward on cpu" in shown
    assert "unknown location" not in shown
    assert not re.search(r"\b1 (\w+ )?(graphs|ops|buffers|kernels|products|attentions)\b", shown)
    assert torch.equal(torch.get_rng_state(), state)


class Broken:
    """A pass that fails."""

    name = "broken"
    requires = ()

    def run(self, module: Any, context: PassContext) -> Any:
        raise ValueError("a bug")


def test_an_internal_error_writes_a_reproducer_and_runs_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PASSES["cse"], "run", Broken.run)
    options = {"reproducer_dir": str(tmp_path)}
    x = torch.randn(3, 3, requires_grad=True)
    with pytest.warns(
        RuntimeWarning, match="lynx runs a forward graph through torch: InternalError"
    ):
        result = torch.compile(function, backend="lynx", options=options)(x)
    with pytest.warns(RuntimeWarning, match="lynx runs a backward graph through torch"):
        result.sum().backward()
    torch.testing.assert_close(result, function(x))
    files = list(tmp_path.glob("*.lynx"))
    assert files
    assert files[0].read_text().startswith("// RUN: cse")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="pass 'cse' failed: a bug"):
        torch.compile(function, backend="lynx", options={"strict": True, **options})(x)


def test_a_graph_that_cannot_be_captured_runs_as_torch_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("lynx.backend.aot_autograd", fails)
    x = torch.randn(3)
    with pytest.warns(RuntimeWarning, match="lynx leaves a graph to torch: RuntimeError: no"):
        torch.testing.assert_close(torch.compile(function, backend="lynx")(x), function(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = torch.compile(lambda y: function(y) + 1, backend="lynx")
        torch.testing.assert_close(fast(x), function(x) + 1)


def test_attention_has_right_gradients() -> None:
    """`core_aten_decompositions()` would make them wrong without an error."""
    inputs = [torch.randn(2, 2, 8, 4, requires_grad=True) for _ in range(3)]
    attention = nn.functional.scaled_dot_product_attention
    expected = torch.autograd.grad(attention(*inputs, is_causal=True).square().sum(), inputs)
    fast = torch.compile(attention, backend="lynx", options={"strict": True})
    actual = torch.autograd.grad(fast(*inputs, is_causal=True).square().sum(), inputs)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_cache_of_aot_autograd_is_not_shared_with_other_back_ends(tmp_path: Path) -> None:
    with torch._functorch.config.patch(enable_autograd_cache=True):
        x = torch.randn(4)
        torch.compile(function, backend="aot_eager")(x[None])
        torch._dynamo.reset()
        before = RECORDS.listen()
        torch.compile(function, backend="lynx")(x[None])
        RECORDS.unlisten(before)
    assert [record.kind for record in before] == ["inference"]


def test_no_compiled_graph_writes_denormals_to_zero() -> None:
    tiny = torch.full((4,), 1e-40)
    torch.compile(lambda x: x * 1, backend="lynx")(tiny)
    assert float((tiny * 1).sum()) > 0


def test_what_is_no_number_is_said_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.lynx"
    file.write_text("graph @g(%a: f32[3]) { %0 = log %a : f32[3] return %0 }")
    inputs = tmp_path / "inputs.pt"
    torch.save([torch.tensor([-1.0, 1.0, 0.0])], inputs)
    assert main(["run", str(file), "--inputs", str(inputs)]) == 0
    shown = capsys.readouterr().out
    assert "off from the reference by 0; 1 of 3 numbers are NaN in both" in shown


@pytest.mark.parametrize(
    ("ours", "theirs", "off"),
    [
        ([math.nan, 1.0], [0.0, 1.0], "inf"),
        ([1.0, 1.0], [math.nan, 1.0], "inf"),
        ([math.inf, 1.0], [math.inf, 0.5], "0.5"),
        ([math.inf, 1.0], [-math.inf, 1.0], "inf"),
    ],
)
def test_what_is_a_number_on_one_side_alone_is_infinitely_far_off(
    ours: list[float], theirs: list[float], off: str
) -> None:
    text = _summary(None, torch.tensor(ours), torch.tensor(theirs))
    assert text.endswith(f"off from the reference by {off}")
