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


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of the documentation has the form that is written, and a row for each family."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    written = sites.DOCUMENT.read_text(encoding="utf-8").splitlines()
    names = ["gpt2", "gpt_oss"]
    made = sites.page([sites.row_of(name) for name in names]).splitlines()
    rows = {line.split()[1]: line for line in written if line.startswith("| ")}
    assert [name for name in families.FAMILIES if name not in rows] == []
    for line in made[: sites.PAGE.count("\n") + 3]:
        assert line in written
    for name in names:
        assert rows[name] in made


def test_reasons_name_files_without_folders() -> None:
    assert sites.short("eager: no (/a/b-c/d/model.py:12 in x)") == "eager: no (model.py:12 in x)"
