"""What plans want beyond how tensors lie, on real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.distributed.tensor import Replicate, Shard

from tests.distribution import doors_unknown, doors_wishes
from tests.distribution.processes import Processes


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as processes:
        yield processes


def test_open_inputs(two: Processes) -> None:
    """What one input says reaches the other operand of a sum, and from there what else uses it."""
    for closed, first, all_ in two.run(doors_wishes.open_inputs):
        assert closed == [(Shard(0),), (Replicate(),)]
        assert first == all_ == [(Shard(0),), (Shard(0),)]


def test_blocks_of_a_projection(two: Processes) -> None:
    """A plan that knows of blocks moves weights, and not their product, if devices divide heads."""
    for of_blocks, by_heads, plain in two.run(
        doors_wishes.blocks, 4, "tp of 3", "tp of 3 by 4", "tp"
    ):
        assert of_blocks == by_heads
        assert ["the plan says 'tp of 3" in text for text in of_blocks[:2]] == [True, True]
        assert not any("addmm" in text for text in of_blocks)
        assert any("all_gather over tp of addmm" in text for text in plain)


def test_pieces_of_heads_that_are_stored_otherwise(two: Processes) -> None:
    for (by_heads,) in two.run(doors_wishes.blocks, 3, "tp of 3 by 4"):
        assert any("the plan says 'tp of 3 by 4, _'" in text for text in by_heads)


def test_priorities_of_parameters(two: Processes) -> None:
    for by_data, by_parameter in two.run(doors_wishes.priorities):
        assert by_data != by_parameter == (Shard(1),)


def test_open_parameters(two: Processes) -> None:
    """What is stored whole by one axis is cut by it in the program, as another parameter is."""
    for weight, result in two.run(doors_wishes.open_parameters):
        assert weight == (Shard(0), Replicate())
        assert result == (Shard(1), Shard(1))


def test_copies_are_models_of_their_own(two: Processes) -> None:
    for placements in two.run(doors_wishes.copies):
        assert placements == [Shard(1), Shard(1)]


def test_unknown_operators_are_cut(two: Processes) -> None:
    """Nothing is gathered of a batch that is cut, forward and backward."""
    for said, moved in two.run(doors_unknown.trained):
        assert "aten.grid_sampler_2d.default" in said
        assert "aten.grid_sampler_2d_backward.default" in said
        assert "lynx_trials.scaled.default" in said
        assert moved
        assert all(text.startswith("all_reduce") for text in moved)
