"""Models of Hugging Face families on a real GPU compute what they compute with eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.tools.gpu import DEVICE, IS_REAL, needs_gpu, there

pytest.importorskip("transformers")
huggingface = pytest.importorskip("tests.models.test_huggingface")
families = pytest.importorskip("tests.models.families")

pytestmark = [*needs_gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if not IS_REAL:
        monkeypatch.setenv("LYNX_CPU_KERNELS", "triton")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", families.FAMILIES)
def test_training(name: str) -> None:
    model = families.build(name).train().to(DEVICE)
    inputs = there({**huggingface.inputs_of(name), **huggingface.without_cache(name)})
    huggingface.assert_trains_alike(model, inputs)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_inference_in_recorded_graphs(name: str) -> None:
    model = families.build(name).eval().to(DEVICE)
    inputs = there({**huggingface.inputs_of(name), **huggingface.without_cache(name)})
    ours = torch.compile(model, backend="lynx", mode="reduce-overhead")
    with torch.no_grad():
        wanted = model(**inputs)
        for _ in range(3):
            huggingface.assert_same(ours(**inputs), wanted)
