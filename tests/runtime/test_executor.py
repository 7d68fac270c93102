"""Programs give what the reference gives, whatever else goes on in the process."""

from __future__ import annotations

import random
import threading

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lynx.ir import Graph
from tests.runtime.programs import check_run, executable, same, with_border
from tests.strategies import graphs, inputs_for


@given(
    graph=graphs(max_ops=20),
    seed=st.integers(0, 2**16),
    flags=st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=300, deadline=None, phases=[Phase.generate], report_multiple_bugs=False)
def test_random_programs(graph: Graph, seed: int, flags: tuple[bool, bool]) -> None:
    graph = with_border(graph, random.Random(seed))
    run = executable(graph, reinplace=flags[0], plan=flags[1])
    first = check_run(graph, run, inputs_for(graph, seed))
    kept = [None if output is None else output.clone() for output in first]
    check_run(graph, run, inputs_for(graph, seed + 1))
    check_run(graph, run, inputs_for(graph, seed + 2))
    for output, before in zip(first, kept, strict=True):
        assert same(output, before), "a later call changed an output"
