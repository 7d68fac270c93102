"""Whole models train on real processes as on one: outputs, gradients, parameters after AdamW."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distribution.processes import Processes
from tests.distribution.sweep import cases, trained
from tests.distribution.training import Case

SOME = (
    Case("gpt", "fsdp", (("dp", 2),)),
    Case("llama 9/3", "tp+sp", (("tp", 2),)),
    Case("gpt", "tp", (("tp", 2),), mode="eval"),
    Case("perceptron", "fsdp", (("dp", 2),), "dtensor"),
    Case("conv net", "rows", (("tp", 2),)),
)
"""What runs each time: every plan, door and mode once."""


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as processes:
        yield processes


@pytest.mark.parametrize("case", SOME, ids=str)
def test_some(two: Processes, case: Case) -> None:
    (outcome,) = trained(two, [case])
    assert not outcome.wrong, f"{outcome.case}: {outcome.wrong}"
    assert outcome.calls, "nothing was communicated"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4, 6, 7])
def test_all(count: int) -> None:
    with Processes(count) as processes:
        wrong = [
            f"{outcome.case}: {outcome.wrong}"
            for outcome in trained(processes, cases(count))
            if outcome.wrong
        ]
    assert not wrong, "\n".join(wrong)
