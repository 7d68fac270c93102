"""Attention on a real device, against torch on the CPU, and by every library that is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lynx.backends.triton import attention_libraries as libraries
from lynx.backends.triton.attention import AttentionOptions
from lynx.backends.triton.attention_launch import attention_kernel
from lynx.backends.triton.autotune import loaded
from tests.backends.c.score_functions import ALL
from tests.backends.triton.attentions import Run
from tests.backends.triton.test_attention import LOOSE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = (2, 4, 2, 300, 520, 64, 64)
OPTIONS = AttentionOptions(is_amd=torch.version.hip is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_score_functions(name: str, dtype: torch.dtype) -> None:
    run = Run(ALL[name](sizes=SIZES, dtype=dtype))
    run.launch(OPTIONS)
    run.compare(2 * LOOSE.get(name, 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("depths", [(16, 16), (40, 72), (80, 80), (96, 96), (128, 128), (256, 256)])
def test_depths(depths: tuple[int, int], dtype: torch.dtype) -> None:
    run = Run(ALL["causal"](sizes=(1, 2, 1, 200, 200, *depths), dtype=dtype, scale=0.5))
    run.launch(OPTIONS)
    run.compare(3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_and_dropout(dtype: torch.dtype) -> None:
    sink = torch.randn(4, 1)
    keep = torch.rand(2, 4, 300, 520) < 0.8
    run = Run(ALL["causal"](sizes=SIZES, dtype=dtype, sink=sink, keep=keep, keep_scale=1.25))
    run.launch(OPTIONS)
    run.compare(3.0)


def test_results_are_the_same_each_time() -> None:
    runs = [Run(ALL["causal"](sizes=SIZES, dtype=torch.bfloat16)) for _ in range(3)]
    for run in runs:
        run.launch(OPTIONS)
    for run in runs[1:]:
        assert torch.equal(run.out, runs[0].out)
        for name, grad in run.found.all().items():
            assert torch.equal(grad, runs[0].found.all()[name])


@pytest.mark.parametrize("library", libraries.LIBRARIES, ids=lambda one: one.name)
@pytest.mark.parametrize("name", ["plain", "scaled", "causal", "window", "softcap"])
def test_libraries(name: str, library: libraries.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each computes what it says that it does, without giving way."""
    if not library.is_there(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip(f"{library.name} is not there")
    monkeypatch.setattr(libraries, "LIBRARIES", (library,))
    sizes = (2, 4, 2, 256, 256, 64, 64)
    run, heard = Run(ALL[name](sizes=sizes, dtype=torch.bfloat16), with_grad_lse=False), list[str]()
    memory = [x.cuda() if x.is_contiguous() else _moved(x) for x in run.memory.tensors]
    for call in run.calls:
        made = attention_kernel(call, OPTIONS, loaded, heard.append, None, "cuda:0")
        made.launch(memory[: len(made.kernel.buffers)], ())
    assert heard == []
    for tensor, copy in zip(run.memory.tensors, memory, strict=True):
        tensor.copy_(copy)
    run.compare(2.0)


def _moved(x: Any) -> torch.Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    return made.copy_(x)
