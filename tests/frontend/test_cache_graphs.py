"""Programs in the cache: found by equal graphs only, in this process and the next, or made anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lynx.graph_cache
from lynx.cache import DiskStore
from lynx.graph_cache import KIND, cached_graph
from lynx.ir import Graph, TensorType, print_graph
from lynx.ir.core import Builder, InputSpec
from lynx.ir.ops.elementwise_math import Exp
from lynx.ir.program import Program
from lynx.ir.program_text import print_program
from lynx.ir.types import DType
from lynx.pass_context import pass_context
from lynx.passes import Target, parse_pipeline
from lynx.records import RECORDS
from lynx.settings import Settings
from tests.tools.tree import ROOT


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Cached:
    """Compiles functions with a cache in a folder, and tells what was found in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, function: Callable[..., Any], *inputs: Any, **options: Any) -> list[bool]:
        """Check against eager, gradients included; return for each graph if it was found."""
        torch._dynamo.reset()
        given = {"cache": True, "cache_dir": str(self.folder), "strict": True, **options}
        compiled = torch.compile(function, backend="lynx", options=given)
        expected, actual = both = function(*inputs), compiled(*inputs)
        torch.testing.assert_close(actual, expected)
        leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        if leaves:
            first, second = (torch.autograd.grad(result.sum(), leaves) for result in both)
            torch.testing.assert_close(second, first)
        return ["load" in record.seconds for record in RECORDS.graphs]


@pytest.fixture
def cached(tmp_path: Path) -> Cached:
    return Cached(tmp_path)


def function(x: Tensor) -> Tensor:
    return (x * 2).tanh().sum(-1) + 1


def test_the_second_time_it_is_found(cached: Cached) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    assert cached.run(function, x) == [False, False]
    assert cached.run(function, x) == [True, True]
    assert cached.run(function, x, cache=False) == [False, False]


VARIANTS: dict[str, Callable[[], Tensor]] = {
    "shape": lambda: torch.randn(4, 9),
    "rank": lambda: torch.randn(2, 4, 8),
    "strides": lambda: torch.randn(8, 4).t(),
    "offset": lambda: torch.randn(33)[1:].view(4, 8),
    "broadcast": lambda: torch.randn(1, 8).expand(4, 8),
    "dtype": lambda: torch.randn(4, 8, dtype=torch.float64),
    "low precision": lambda: torch.randn(4, 8).bfloat16(),
    "gradient": lambda: torch.randn(4, 8, requires_grad=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_inputs_of_another_kind_are_not_confused(cached: Cached, variant: str) -> None:
    x, other = torch.randn(4, 8), VARIANTS[variant]()
    assert not any(cached.run(function, x))
    assert not any(cached.run(function, other))
    assert all(cached.run(function, x))
    assert all(cached.run(function, other))


def test_dynamic_and_static_sizes_are_not_confused(cached: Cached) -> None:
    x, longer = torch.randn(4, 8), torch.randn(6, 8)
    assert cached.run(function, x) == [False]
    torch._dynamo.mark_dynamic(x, 0)
    assert cached.run(function, x) == [False]
    torch._dynamo.mark_dynamic(longer, 0)
    assert cached.run(function, longer) == [True]
    compiled = torch.compile(
        function,
        backend="lynx",
        dynamic=True,
        options={"cache": True, "cache_dir": str(cached.folder)},
    )
    for size in (2, 3, 7):
        y = torch.randn(size, 8)
        torch.testing.assert_close(compiled(y), function(y))


OPTIONS: list[dict[str, Any]] = [
    {"pipeline": "cse,dce,decompose,lower,plan-memory"},
    {"pipeline": "canonicalize,decompose,lower,reinplace,plan-memory"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_options_are_not_confused(cached: Cached, options: dict[str, Any]) -> None:
    x = torch.randn(4, 8)
    assert cached.run(function, x) == [False]
    assert cached.run(function, x, **options) == [False]
    assert cached.run(function, x, **options) == [True]
    assert cached.run(function, x, debug=1) == [True]  # which changes nothing


def test_a_named_pipeline_is_what_it_stands_for(cached: Cached) -> None:
    x = torch.randn(4, 8)
    cached.run(function, x)
    assert cached.run(function, x, pipeline=str(parse_pipeline("default"))) == [True]


def test_modes_of_torch_are_not_confused(cached: Cached) -> None:
    x = torch.randn(4, 8)
    assert cached.run(function, x) == [False]
    torch.use_deterministic_algorithms(True)
    try:
        assert cached.run(function, x) == [False]
    finally:
        torch.use_deterministic_algorithms(False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert cached.run(function, x) == [False]
    finally:
        torch.set_float32_matmul_precision(before)
    assert cached.run(function, x) == [True]


def test_other_code_is_another_key(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 8)
    assert cached.run(function, x) == [False]
    monkeypatch.setattr(lynx.graph_cache, "_FINGERPRINT", "another version")
    assert cached.run(function, x) == [False]
    monkeypatch.undo()
    assert cached.run(function, x) == [True]
    assert lynx.graph_cache.fingerprint() == lynx.graph_cache.fingerprint()


def with_constant(values: list[float]) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x * torch.tensor(values) + 1

    return scaled


def test_constants_count_by_content(cached: Cached) -> None:
    x = torch.randn(2)
    assert cached.run(with_constant([2.0, 3.0]), x) == [False]
    assert cached.run(with_constant([2.0, 4.0]), x) == [False]
    assert cached.run(with_constant([2.0, 3.0]), x) == [True]


def test_constants_that_passes_computed_are_kept(cached: Cached) -> None:
    def folded(x: Tensor) -> Tensor:
        return x + torch.arange(6).float().sqrt()

    x = torch.randn(3, 6)
    assert cached.run(folded, x) == [False]
    assert cached.run(folded, x) == [True]


def test_random_numbers_stay_random(cached: Cached) -> None:
    def noisy(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.randn(100)
    options = {"cache": True, "cache_dir": str(cached.folder)}
    drawn = []
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(noisy, backend="lynx", options=options)
        for seed in (0, 1):
            torch.manual_seed(seed)
            drawn.append(compiled(x))
            torch.manual_seed(seed)
            torch.testing.assert_close(drawn[-1], noisy(x))
    assert "load" in RECORDS.graphs[-1].seconds
    assert not torch.equal(drawn[0], drawn[1])


def test_graphs_with_what_has_no_digest_are_compiled_each_time(cached: Cached) -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    x = torch.randn(4)
    assert cached.run(branches, x) == [False]
    assert cached.run(branches, x) == [False]


@pytest.mark.parametrize("contents", [b"", b"no pickle", b"\x80\x05K\x01."])
def test_an_entry_that_cannot_be_used_is_made_anew(cached: Cached, contents: bytes) -> None:
    x = torch.randn(4, 8)
    cached.run(function, x)
    store = DiskStore(cached.folder, 1 << 30)
    (entry,) = (entry for entry in store.entries() if entry.kind == KIND)
    store.remove(KIND, entry.key)
    store.put(KIND, entry.key, contents)
    assert cached.run(function, x) == [False]
    assert cached.run(function, x) == [True]


def test_a_damaged_entry_is_made_anew(cached: Cached) -> None:
    x = torch.randn(4, 8)
    cached.run(function, x)
    for entry in DiskStore(cached.folder, 1 << 30).entries():
        contents = bytearray(entry.path.read_bytes())
        contents[len(contents) // 2] ^= 1
        entry.path.unlink()  # the file is loaded: it must not change in place
        entry.path.write_bytes(contents[:-1] if entry.kind == KIND else contents)
    assert cached.run(function, x) == [False]
    assert cached.run(function, x) == [True]


def test_whoever_looks_inside_sees_the_passes_at_work(
    cached: Cached, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(4, 8)
    cached.run(function, x)
    assert cached.run(function, x, debug=2) == [False]
    assert "plan-memory" in capfd.readouterr().err
    assert cached.run(function, x, dump_dir=str(tmp_path / "dumps")) == [False]
    assert list((tmp_path / "dumps").rglob("*.lynx"))


def chain(length: int) -> Graph:
    builder = Builder("inference")
    value = builder.input("x", TensorType(DType.F32, (8,)), InputSpec((1,)))
    for _ in range(length):
        value = builder.emit(Exp(value))
    return builder.build((value,))


def test_long_programs_are_kept_without_loss(tmp_path: Path) -> None:
    graph = chain(5000)
    settings, target = Settings(cache_dir=str(tmp_path)), Target()
    pipeline = parse_pipeline("lower,plan-memory")
    place = cached_graph(graph, pipeline, target, settings)
    assert place is not None
    assert place.find() is None
    program = pipeline.run(graph, pass_context(graph))
    assert isinstance(program, Program)
    assert place.put(program, [])
    again = cached_graph(chain(5000), pipeline, target, settings)
    assert again is not None
    found = again.find()
    assert found is not None
    assert print_program(found.program) == print_program(program)
    assert print_graph(found.program.graph) == print_graph(program.graph)
    assert cached_graph(chain(4999), pipeline, target, settings) != again
    assert cached_graph(graph, pipeline, Target(cores=7), settings) != again


SCRIPT = """
import json, sys, torch
from lynx.records import RECORDS

def function(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1).sum()

torch.manual_seed(0)
x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
compiled = torch.compile(function, backend="lynx", options={"strict": True})
loss = compiled(x, w)
loss.backward()
found = ["load" in record.seconds for record in RECORDS.graphs]
print(json.dumps({"found": found, "loss": loss.item(), "gradient": w.grad.sum().item()}))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "LYNX_CACHE": "1", "LYNX_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def test_processes_at_the_same_time_and_one_after_them(tmp_path: Path) -> None:
    first, second = [result_of(process) for process in [start(tmp_path), start(tmp_path)]]
    before = {entry.path for entry in DiskStore(tmp_path, 1 << 30).entries()}
    third = result_of(start(tmp_path))
    assert third["found"] == [True, True]
    assert {entry.path for entry in DiskStore(tmp_path, 1 << 30).entries()} == before
    assert first["loss"] == second["loss"] == third["loss"]
    assert first["gradient"] == second["gradient"] == third["gradient"]
