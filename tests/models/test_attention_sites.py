"""Attention of model families is recognised wherever it is, in training and inference."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
sites = pytest.importorskip("tests.models.attention_sites")
families = pytest.importorskip("tests.models.families")

pytestmark = pytest.mark.filterwarnings("ignore")
OFTEN = ["deberta-v2", "gemma2", "gpt2", "gpt_oss", "llama", "swin", "t5", "whisper"]
NAMES = [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in families.FAMILIES]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_all_attention_is_found(
    name: str, attention: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        count = sites.count_family(name, attention, training=training)
    except ValueError as error:
        pytest.skip(str(error))
    assert count.found == count.sites, count.reasons
