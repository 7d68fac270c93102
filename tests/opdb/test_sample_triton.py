"""A sample of torch's operator database whose kernels are made and interpreted by Triton."""

from __future__ import annotations

import pytest
import torch

from tests.opdb.check import Pair, check
from tests.opdb.test_sample import SAMPLE

pytestmark = pytest.mark.filterwarnings("ignore")
PAIRS = [p if n % 3 == 0 else pytest.param(p, marks=pytest.mark.slow) for n, p in enumerate(SAMPLE)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_operator(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYNX_CPU_KERNELS", "triton")
    verdict = check(pair, ["lynx"], samples=2)["lynx"]
    if verdict != "pass" and check(pair, ["aot_eager"], samples=2)["aot_eager"] != "pass":
        pytest.skip("aot_eager fails too")
    torch._dynamo.reset()
    assert verdict == "pass"
