"""The kernels of models at real widths compile for devices that are not there, without a spill.

    python -m tests.models.test_triton_ahead_of_time gpt2 llama

prints what each kernel takes of each device: registers, shared memory, spills.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from lynx.backends.triton.aot import TARGETS, Resources, compile_module, table
from lynx.backends.triton.module import PrintedModule
from tests.tools.triton_kernels import collected_kernels

pytest.importorskip("transformers")
widths = pytest.importorskip("tests.models.widths")

pytestmark = pytest.mark.filterwarnings("ignore")
DEFAULT = [("gpt2", "sm_90"), ("resnet", "gfx942")]


def pairs() -> list[Any]:
    """Return all models with all targets, of which only a few are in the default suite."""
    found = [(name, target) for name in widths.WIDE for target in TARGETS]
    return [p if p in DEFAULT else pytest.param(*p, marks=pytest.mark.slow) for p in found]


@pytest.fixture(autouse=True)
def _by_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LYNX_CPU_KERNELS", "triton")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def modules_of(name: str) -> list[PrintedModule]:
    """Return the distinct kernels of a training step, products as tiles among them."""
    model, inputs = widths.WIDE[name].build(name)
    options = {"strict": True, "pipeline": "max-autotune", "cpu_kernels": "triton"}
    with collected_kernels() as found:
        torch.compile(model, backend="lynx", options=options)(**inputs).loss.backward()
    return list(found.values())


def resources_of(modules: Sequence[PrintedModule], target: str) -> list[Resources]:
    """Compile modules side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(lambda module: compile_module(module, target), modules)
        return [one for found in compiled for one in found]


@pytest.mark.parametrize(("name", "target"), pairs())
def test_nothing_spills(name: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    modules = modules_of(name)
    found = resources_of(modules, target)
    with capsys.disabled():
        print(f"\n{name}, {len(modules)} kernels\n{table(found)}")
    assert len(modules) > 20
    assert [one for one in found if one.spills] == []
    assert all(one.registers > 0 for one in found)


if __name__ == "__main__":
    for argument in sys.argv[1:] or widths.WIDE:
        torch._dynamo.reset()
        collected = modules_of(argument)
        print(argument)
        print(table([one for target in TARGETS for one in resources_of(collected, target)]))
