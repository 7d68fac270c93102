"""Models of Hugging Face families whose kernels are made by Triton, as for a GPU.

Every distinct kernel, forward and backward, runs in Triton's interpreter and is compared with the
interpreter of kernels; outputs, losses and gradients are compared with eager's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.tools.triton_kernels import checked_kernels

pytest.importorskip("transformers")
huggingface = pytest.importorskip("tests.models.test_huggingface")
families = pytest.importorskip("tests.models.families")

pytestmark = pytest.mark.filterwarnings("ignore")
DEFAULT = ["bert", "llama", "resnet"]
NAMES = [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in families.FAMILIES]


@pytest.fixture(autouse=True)
def _by_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LYNX_CPU_KERNELS", "triton")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_training(name: str) -> None:
    model = families.build(name).train()
    inputs = {**huggingface.inputs_of(name), **huggingface.without_cache(name)}
    with checked_kernels() as checks:
        before = checks.launched
        huggingface.assert_trains_alike(model, inputs)
    assert checks.launched >= before + 10
    assert checks.checked
