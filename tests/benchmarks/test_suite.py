"""The benchmark suite runs through, tells wrong from right, and reports what it has."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.devices import on_device
from benchmarks.measure import Contestant, errors, exact
from benchmarks.names import NAMES, TRAINING
from benchmarks.plot import Bar, bar_chart
from benchmarks.report import SPLIT, geometric_mean, ratio, write_report
from benchmarks.split import _kind, _name_of, where
from benchmarks.suite import Run, jobs, parse
from benchmarks.workloads import WORKLOADS
from lynx.backends.reference.aten import _call_flat
from lynx.backends.reference.attention import _attend
from lynx.backends.reference.convolution import _convolve_into
from tests.tools.tree import ROOT


def test_all_workloads_are_listed() -> None:
    assert sorted(NAMES) == sorted(WORKLOADS)
    assert [n for n in NAMES if WORKLOADS[n].trains] == list(TRAINING)
    assert all(workload.description for workload in WORKLOADS.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_workloads_are_the_same_each_time(name: str) -> None:
    workload = WORKLOADS[name]
    first, second = (
        Contestant("eager", workload, *workload.build(is_quick=True)).results() for _ in range(2)
    )
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        torch.testing.assert_close(tensor, second[key], rtol=0, atol=0)
    has_gradients = len(first) > 1
    assert has_gradients == workload.trains
    reference = exact(workload, is_quick=True)
    assert reference.keys() == first.keys()
    check = errors(first, [first], reference)
    assert check["times_eager"] <= 1
    assert check["missing"] == []
    assert check["error"] < (0.1 if name == "gpt-bf16" else 1e-3)


def test_wrong_results_are_seen() -> None:
    workload = WORKLOADS["tiny"]
    eager = Contestant("eager", workload, *workload.build(is_quick=True)).results()
    reference = exact(workload, is_quick=True)
    wrong = dict(eager)
    name = list(eager)[-1]
    wrong[name] = eager[name] * 1.01
    assert errors(wrong, [eager], reference)["times_eager"] > 100
    del wrong[name]
    assert errors(wrong, [eager], reference)["missing"] == [name]


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.suite", "--quick", "--rounds=3", "--threads=1"]
    folders = [f"--results={tmp_path / 'results'}", f"--scratch={tmp_path / 'scratch'}"]
    return subprocess.run(
        [*command, *folders, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_suite_runs_through_and_goes_on_where_it_was(tmp_path: Path) -> None:
    options = ["--only=pointwise,tiny-inference", "--backends=eager,lynx", "--tasks=speed"]
    first = run(tmp_path, *options)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "[1/2] pointwise speed:eager+lynx" in first.stdout
    assert "## Geometric means of speed" in first.stdout
    again = run(tmp_path, *options)
    assert again.returncode == 0
    assert "[1/2]" not in again.stdout
    folder = tmp_path / "results" / "suite"
    assert (folder / "results.md").read_text() in again.stdout
    ElementTree.parse(folder / "results.svg")
    kept = json.loads((folder / "pointwise.json").read_text())["speed:eager+lynx"]
    assert len(kept["seconds"]["lynx"]) == 3
    assert kept["left_to_torch"] == []
    assert kept["checks"]["lynx"]["times_eager"] < 2


@pytest.mark.parametrize("name", ["tiny", "resnet", "vocabulary"])
def test_the_split_of_a_step(name: str) -> None:
    found = where({"quick": True}, WORKLOADS[name])
    assert found["step"] > 0
    assert found["kernels"] > 0
    assert found["products_limit"] > 0
    assert {row["kind"] for row in found["largest"]} >= {"kernels", "products"}
    assert all(row["calls"] == round(row["calls"]) for row in found["largest"])
    torch._dynamo.reset()


def test_attention_is_a_kind_of_its_own() -> None:
    found = where({"quick": True}, WORKLOADS["gpt-long"])
    assert found["attention"] > 0
    assert found["attention_limit"] > 0
    torch._dynamo.reset()


def test_calls_of_torch_are_told_apart() -> None:
    found = {
        label: _kind(label)
        for function in (
            functools.partial(_call_flat, torch.ops.aten.mm.default),
            functools.partial(
                _call_flat, torch.ops.aten._scaled_dot_product_attention_math.default
            ),
            functools.partial(_call_flat, torch.ops.aten.native_dropout.default),
            functools.partial(_attend, None, ()),
        )
        for label in [_name_of(function, "partial_")]
    }
    assert list(found.values()) == ["products", "attention", "torch", "attention"], found
    assert _kind(_name_of(_convolve_into, "_convolve_into")) == "products"


def test_legends_say_what_columns_are(tmp_path: Path) -> None:
    row = {what: 0.001 for what in SPLIT if not what.startswith("attention")}
    text = write_report(tmp_path, {"tiny": {"split:lynx": row}}, "machine")
    assert "| tiny     | 1.00 |" in text
    assert "|           |" in text, "what was not measured is no zero"
    assert "older than its kernels" in text
    whole = write_report(tmp_path, {"tiny": {"split:lynx": dict.fromkeys(SPLIT, 0.0)}}, "machine")
    assert "older than its kernels" not in whole
    assert all(f"`{what}`" in text for what in SPLIT if not what.endswith("_limit"))


def test_what_crashes_is_reported_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    result = run(tmp_path, "--only=tiny-inference", "--backends=eager,nonsense", "--tasks=cold")
    assert result.returncode == 1
    assert "## Failures" in result.stdout
    assert "nonsense" in result.stderr


def test_jobs() -> None:
    options = parse(["--only", "gpt", "--backends", "eager,inductor,lynx"])
    assert [job.key for job in jobs(options)] == [
        "speed:eager+inductor+lynx",
        "cold:inductor",
        "cold:lynx",
        "warm:inductor",
        "warm:lynx",
        "trace:aot_eager",
        "memory:eager",
        "memory:inductor",
        "memory:lynx",
        "split:lynx",
    ]
    with pytest.raises(SystemExit):
        parse(["--only", "gtp"])


def test_cold_caches_are_empty(tmp_path: Path) -> None:
    run_ = Run(parse(["--scratch", str(tmp_path), "--only", "gpt", "--tasks", "cold"]))
    (job, _) = jobs(run_.options)
    folder = run_.caches(job)
    (folder / "left").write_text("")
    assert list(run_.caches(job).iterdir()) == []


def test_ratios() -> None:
    found = ratio([9.0, 9.0, 9.0, 2.0, 4.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert (found.low, found.middle, found.high) == (3.0, 4.0, 5.0)
    assert str(ratio([1.0], [2.0])) == "0.50 (0.50 to 0.50)"
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_the_plot_is_drawn() -> None:
    bars = [Bar("a<b", "lynx", "training", 2.5), Bar("c", "inductor", "inference", 0.4)]
    ElementTree.fromstring(bar_chart(bars, "speed & more"))
    ElementTree.fromstring(bar_chart([], "nothing"))


@pytest.mark.parametrize("name", ["llama-decode", "resnet"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_workloads_move_to_a_device(name: str) -> None:
    module, inputs = on_device(WORKLOADS[name], "meta").build(is_quick=True)
    tensors = [*module.parameters(), *module.buffers(), *inputs]
    for layer in getattr(getattr(module, "cache", None), "layers", ()):
        tensors += [layer.keys, layer.values]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert on_device(WORKLOADS[name], "cpu") is WORKLOADS[name]


def test_a_device_has_results_of_its_own_and_no_split(tmp_path: Path) -> None:
    options = parse(["--device", "cuda:1", "--only", "tiny", "--results", str(tmp_path)])
    assert Run(options).folder == tmp_path / "suite-cuda1"
    assert "split" not in {job.task for job in jobs(options)}
    assert Run(parse(["--results", str(tmp_path)])).folder == tmp_path / "suite"


def test_modes_of_back_ends() -> None:
    workload = WORKLOADS["tiny-inference"]
    runs = [
        Contestant(backend, workload, *workload.build(is_quick=True))
        for backend in ("eager", "lynx:reduce-overhead")
    ]
    ours, theirs = (run.results()["output"] for run in runs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("task", ["speed", "start", "memory"])
def test_measurements_on_a_gpu(task: str) -> None:
    arguments = {
        "task": task, "workload": "gpt", "backend": "lynx", "backends": ["lynx"], "rounds": 2,
        "quick": True, "device": "cuda",
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.measure", json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])
