"""Every kernel of small models, forward and backward, through Triton's interpreter."""

from __future__ import annotations

import pytest

from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.backends.triton.sizes import LIMITS, Limits
from tests.backends.triton.graphs_of_models import check_graph, fused_graphs, model_inputs

# Small limits let small models take the ways of large ones.
LOOPED = Limits(persistent=8, tile=64)
SPLIT = Limits(
    programs=16, persistent=16, tile=64, split_along=32, split_across=16, part_along=16,
    part_across=4,
)  # fmt: skip


WAYS = {
    "block": (LIMITS, SPLIT),
    "block_bf16": (LOOPED,),
    "gated": (LIMITS, LOOPED, SPLIT),
    "convolutions": (SPLIT,),
}


@pytest.mark.parametrize("name", WAYS)
def test_kernels_of_models(name: str, interpreter: TritonInterpreter) -> None:
    model, inputs = model_inputs(name)
    graphs = fused_graphs(model, *inputs)
    assert len(graphs) == 2
    for graph in graphs:
        for limits in WAYS[name]:
            assert check_graph(graph, interpreter, limits) > 0
