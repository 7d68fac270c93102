"""Effects compile, results may be inputs; what does not compile runs whole, and says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distribution import doors_uncompiled
from tests.distribution.processes import Processes


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as processes:
        yield processes


def test_effects(two: Processes) -> None:
    assert two.run(doors_uncompiled.with_effects) == [[], []]


def test_results_that_were_given(two: Processes) -> None:
    assert two.run(doors_uncompiled.inputs_as_outputs) == [[], []]


def test_what_is_left_to_torch(two: Processes) -> None:
    for (said,) in two.run(doors_uncompiled.left_to_torch):
        assert "lynx leaves a graph to torch" in said
        assert "unknown-size" in said
