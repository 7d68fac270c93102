"""Random programs give eager's bits where all is exact, and its accuracy where it is not."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.numerics.catalogue import KINDS
from tests.numerics.judge import check
from tests.numerics.programs import DRAWN, LAYOUTS, SHAPES, Input, Program, Writer, default_dtype
from tests.numerics.sweep import Trial, program_of, runs_in_eager
from tests.tools.compare import compiled

pytestmark = pytest.mark.filterwarnings("ignore")
# `LYNX_FUZZ=1000` looks for new counterexamples; `tests.numerics.sweep` does so faster.
bounded = settings(
    max_examples=int(os.environ.get("LYNX_FUZZ", "25")),
    derandomize="LYNX_FUZZ" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program of up to ten lines."""
    trains, special = draw(st.booleans()), draw(st.integers(0, 6)) == 6
    shape = draw(st.sampled_from(SHAPES))
    inputs = []
    for _ in range(draw(st.integers(1, 3))):
        other = draw(st.sampled_from([shape, shape, shape[-1:], (4, 1)]))
        dtype = draw(st.sampled_from(["f32", "bf16"] if trains else DRAWN))
        layout = draw(st.sampled_from(LAYOUTS))
        inputs.append(Input(other, dtype, layout, trains, special and not trains))
    writer = Writer(tuple(inputs))
    numbers = st.tuples(*[st.integers(0, 65535)] * 7)
    step = st.tuples(st.sampled_from(list(KINDS)), numbers)
    for drawn in draw(st.lists(step, min_size=2, max_size=10)):
        writer.add(drawn)
    return writer.finish(tuple(draw(st.lists(st.integers(0, 65535), min_size=1, max_size=3))))


@bounded
@given(programs(), st.booleans())
def test_random_programs(program: Program, dynamic: bool) -> None:
    note(str(program))
    assume(program.lines and runs_in_eager(program))
    trial = Trial(dynamic)
    found = trial.verdict(program)
    assert not found or not trial.fails(program), found


def write(inputs: list[Input], *lines: str, exact: str = "") -> Program:
    """Return the program of these lines, which returns the last one."""
    named = [f"t{number} = {line}" for number, line in enumerate(lines)]
    return Program(tuple(inputs), tuple(named), (f"t{len(lines) - 1}",), frozenset(exact.split()))


KNOWN = {
    "every point of an expanded source is added": write(
        [Input((4, 6), "bf16", "expanded")],
        "x0.index_add(0, torch.zeros(x0.shape[0], dtype=i64), x0)",
    ),
    "slices of low precision are added up in f32": write(
        [Input((16, 24), "bf16"), Input((5, 16, 24), "bf16")],
        "x0.index_add(0, torch.zeros(80, dtype=i64), x1.flatten(0, 1))",
        "t0 + x0.index_add(1, torch.zeros(24, dtype=i64), x0)",
    ),
    "a sum of truth values is one": write([Input((4, 6), "i8")], "x0.sum(0, dtype=b8)", exact="t0"),
    "calls of the library are summed in blocks": write(
        [Input((16, 24), "i8")], "torch.atan2(x0, x0)", "t0.mean((0, -1), keepdim=True)"
    ),
    "what is written requires the gradients of what was there": Program(
        (Input((4,), "f32", requires_grad=True), Input((2, 3), "f32", requires_grad=True)),
        ("t0 = x1.softmax(0)", "t1 = x0 * 2", "t1.logical_not_()", "t2 = x0 * 3", "t2.zero_()"),
        ("t1", "t2"),
    ),
    "equal numbers have no deviation": write(
        [Input((130,), "f32", "expanded")], "F.layer_norm(x0, x0.shape[-1:])"
    ),
    "variance adds up in f64": write([Input((33, 517), "f32")], "x0.var(0)", "t0 + x0.var(1)[0]"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs(name: str) -> None:
    assert check(KNOWN[name], compiled) == ""


def test_an_exact_run_has_the_same_arguments() -> None:
    inputs = [Input((33, 17), dtype, special=True) for dtype in DRAWN]
    program = write(inputs, "x0 + 1")
    with default_dtype(exact=True):
        exact = program.arguments(0, exact=True)
    for x, y in zip(program.arguments(0), exact, strict=True):
        torch.testing.assert_close(x.to(y.dtype), y, rtol=0, atol=0, equal_nan=True)


SUMS = [
    ((500, 300), (0,)), ((500, 300), (1,)), ((1000, 16, 8), (0, 2)), ((8, 16, 1000), (0, 2)),
    ((3000, 1), (0,)), ((100_000, 3), (0,)), ((100, 100, 100), (0, 1)), ((7, 300, 2), (1,)),
    ((2, 4000, 5), (1,)), ((200, 3, 5, 7), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dims"), SUMS, ids=str)
def test_sums_are_as_accurate_as_those_of_eager(
    shape: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.rand(shape) * 3

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        parts = [x, x.transpose(0, -1).contiguous().transpose(0, -1).exp(), x.atan()]
        return [part.sum(dims) for part in parts] + [x.var(dims), x.mean(dims)]

    torch._dynamo.reset()
    triples = zip(compiled(function)(x), function(x), function(x.double()), strict=True)
    for place, (actual, expected, true) in enumerate(triples):
        error, eager = ((y.double() - true).abs().max() for y in (actual, expected))
        assert error <= 2 * eager + 2 * torch.finfo(x.dtype).eps * true.abs().max(), place


def test_every_line_is_written_by_some_program() -> None:
    missing = {line for lines in KINDS.values() for line in lines}
    for seed in range(3000):
        if not missing:
            break
        missing -= set(program_of(seed).templates)
    assert not missing
