"""Packing never lets two living buffers overlap, and comes close to what must be living."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.backends.reference import call_of
from lynx.ir import (
    Builder,
    DType,
    Graph,
    InputSpec,
    Location,
    OutputSpec,
    ScalarType,
    SymbolRange,
    TensorType,
    ops,
    symbol,
)
from lynx.ir.program import Program
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.offsets import Lifetime, Packing, lower_bound, pack
from lynx.passes.plan_memory import format_bytes, groups_of, memory_report


def check(lives: list[Lifetime], packing: Packing) -> None:
    assert packing.lower_bound == lower_bound(lives)
    placed = [(life, at) for life, at in zip(lives, packing.offsets, strict=True) if life.size]
    assert packing.peak == max((at + life.size for life, at in placed), default=0)
    for index, (a, x) in enumerate(placed):
        assert x >= 0
        for b, y in placed[index + 1 :]:
            living_together = a.start <= b.end and b.start <= a.end
            assert not living_together or x + a.size <= y or y + b.size <= x, (a, x, b, y)


def lifetimes() -> st.SearchStrategy[list[Lifetime]]:
    sizes = st.integers(0, 9).map(lambda n: 64 * n)
    span = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)
    one = st.builds(lambda size, span: Lifetime(size, *span), sizes, span)
    return st.lists(one, max_size=40)


@given(lifetimes(), st.sampled_from((0, 50, 10**6)))
def test_living_buffers_do_not_overlap(lives: list[Lifetime], budget: int) -> None:
    check(lives, pack(lives, budget))


def realistic(seed: int, count: int, span: float) -> list[Lifetime]:
    """Return many short lives and some long ones, of sizes as in a network: few different ones."""
    generator = random.Random(seed)
    sizes = [64 * generator.choice((1, 3, 8, 32, 96, 128, 512)) for _ in range(6)]
    lives = []
    for _ in range(count):
        start = generator.randrange(count)
        length = generator.expovariate(1 / span) * (8 if generator.random() < 0.1 else 1)
        lives.append(Lifetime(generator.choice(sizes), start, min(count, start + int(length))))
    return lives


@pytest.mark.parametrize("span", [2, 10, 40])
@pytest.mark.parametrize("seed", range(6))
def test_the_peak_is_near_the_lower_bound(seed: int, span: int) -> None:
    lives = realistic(seed, 300, span)
    packing = pack(lives)
    check(lives, packing)
    assert packing.peak <= 1.25 * packing.lower_bound


def test_packing_is_deterministic() -> None:
    lives = realistic(3, 500, 12)
    assert pack(lives) == pack(list(lives))


def test_work_is_bounded_by_the_budget() -> None:
    """Ten thousand buffers that all live at once have fifty million pairs."""
    lives = [Lifetime(64 * (1 + index % 7), 0, 1) for index in range(10_000)]
    packing = pack(lives)
    assert packing.peak == packing.lower_bound == sum(life.size for life in lives)


def lowered(graph: Graph, pipeline: str = "lower,reinplace,plan-memory") -> Program:
    context = PassContext(can_write_into=lambda op: call_of(op).out is not None)
    program = parse_pipeline(pipeline).run(graph, context)
    assert isinstance(program, Program)
    return program


def layers(**spec: Any) -> Graph:
    builder = Builder("layers")
    x = builder.input("x", TensorType(DType.F32, (16, 16)), InputSpec((16, 1)))
    value = x
    for line in range(8):
        builder.loc = Location("model.py", line + 1)
        value = builder.emit(ops.Matmul(value, x))
        value = builder.emit(ops.Tanh(value))
    return builder.build((value,), (OutputSpec(**spec),))


def test_report() -> None:
    program = lowered(layers())
    report = memory_report(program)
    (arena,) = report.arenas
    assert report.peak == arena.peak == 2 * 1024 == arena.lower_bound
    assert arena.fragmentation == 0
    assert arena.naive == 7 * 1024, "the last is computed where the output is"
    assert [buffer.size for buffer in arena.largest] == [1024, 1024]
    assert "model.py" in str(report)
    assert "2.0 KiB for 7 buffers" in str(report)


def test_values_kept_for_backward_have_an_arena_of_their_own() -> None:
    (temporary, saved) = memory_report(lowered(layers(saved=True))).arenas
    assert (temporary.saved, saved.saved) == (False, True)
    assert saved.peak == 1024


def test_symbolic_sizes_are_planned_later() -> None:
    n = symbol("n")
    builder = Builder("symbolic")
    builder.input("n", ScalarType("int", n))
    x = builder.input("x", TensorType(DType.F32, (n, 16)), InputSpec((16, 1)))
    value = x
    for _ in range(3):
        value = builder.emit(ops.Sum(builder.emit(ops.Tanh(value)), (1,), True))
        value = builder.emit(ops.Add(value, x))
    program = lowered(builder.build((value,), symbols=(SymbolRange("n", 2, None),)))
    assert program.arenas == ()
    assert memory_report(program).symbolic == 1
    (arena,) = memory_report(program, {"n": 10}).arenas
    assert 0 < arena.lower_bound <= arena.peak < arena.naive
    (group,) = groups_of(program)
    for size in (1, 3, 17):
        packing = group.pack({"n": size})
        assert packing.peak >= packing.lower_bound > 0


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text
