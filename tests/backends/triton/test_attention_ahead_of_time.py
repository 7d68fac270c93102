"""Attention compiles for devices that are not there, and keeps to their registers."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.triton.aot import Resources, compile_module, table
from lynx.backends.triton.attention import AttentionOptions, print_attention
from tests.backends.c.score_functions import ALL
from tests.backends.triton.attentions import Run

SCORES = ("causal", "window", "softcap_causal", "bias_1hqk")
QUICK = [("sm_90", "causal", 128), ("gfx942", "softcap_causal", 64)]
CASES = [(t, name, d) for t in ("sm_90", "gfx942") for name in SCORES for d in (64, 128)]


def resources(target: str, name: str, depth: int, dtype: torch.dtype) -> list[Resources]:
    """Compile an attention and its gradients in the configuration that sizes suggest."""
    run = Run(ALL[name](sizes=(1, 4, 2, 1024, 1024, depth, depth), dtype=dtype))
    options = AttentionOptions(is_amd=target != "sm_90")
    modules = [print_attention(call, options).printed for call in run.calls]
    return [one for module in modules for one in compile_module(module, target)]


@pytest.mark.parametrize(
    ("target", "name", "depth"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_nothing_spills(
    target: str, name: str, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = resources(target, name, depth, torch.bfloat16)
    with capsys.disabled():
        print(f"\n{name}, depth {depth}, bf16\n{table(found)}")
    assert [one for one in found if one.spills] == []
    assert len(found) == 4


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("depth", [64, 128])
def test_nothing_spills_in_single_precision(
    target: str, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = resources(target, "softcap_causal", depth, torch.float32)
    with capsys.disabled():
        print(f"\nsoftcap_causal, depth {depth}, f32\n{table(found)}")
    assert [one for one in found if one.spills] == []
