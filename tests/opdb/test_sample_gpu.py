"""A sample of torch's operator database on a real GPU."""

from __future__ import annotations

import pytest
import torch

from tests.opdb.check import DTYPES, OPERATORS, Pair, check
from tests.opdb.test_sample import SAMPLE
from tests.tools.gpu import DEVICE, needs_gpu

pytestmark = [*needs_gpu, pytest.mark.filterwarnings("ignore")]
KIND = torch.device(DEVICE).type
PAIRS = [
    pair for pair in SAMPLE if DTYPES[pair.dtype] in OPERATORS[pair.operator].supported_dtypes(KIND)
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_operator(pair: Pair) -> None:
    verdict = check(pair, ["lynx"], samples=2, device=DEVICE)["lynx"]
    if verdict != "pass":
        theirs = check(pair, ["aot_eager"], samples=2, device=DEVICE)["aot_eager"]
        if theirs != "pass":
            pytest.skip("aot_eager fails too")
    torch._dynamo.reset()
    assert verdict == "pass"
