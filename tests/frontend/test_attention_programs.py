"""Random attention is found and computes what eager does, as operator and by generated kernels.

`LYNX_TEST_PROGRAMS` says of how many programs, which `--hypothesis-seed` chooses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.frontend.attention_programs import Program, Sizes, programs
from tests.frontend.test_recognise_attention import Counter, evaluated, in_double

PROGRAMS = int(os.environ.get("LYNX_TEST_PROGRAMS", "0"))


def many(default: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=PROGRAMS or default, deadline=None, derandomize=not PROGRAMS, database=None,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def check(program: Program, compiled: Callable[..., Any], *, dynamic: bool) -> None:
    """Compare results and gradients with eager's, and their errors where those are large."""
    torch.manual_seed(0)
    operands = program.operands()
    expected = evaluated(program, operands)
    if dynamic:
        for x in operands[:3]:
            for dim in program.dynamic_dims:
                torch._dynamo.maybe_mark_dynamic(x, dim)
    actual = evaluated(compiled, operands)
    assert [x.dtype for x in actual] == [x.dtype for x in expected]
    exact: list[torch.Tensor] | None = None
    for n, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        tolerance = 1e-4 if theirs.dtype is torch.float32 else 2e-2
        if torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
            continue
        exact = exact or evaluated(program, tuple(map(in_double, operands)))
        assert_no_worse(ours, theirs, exact[n])


def assert_no_worse(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """See that each element is as near to what is exact as eager's, to within its own error."""
    assert torch.equal(ours.isnan(), theirs.isnan())
    known = ~(theirs.isnan() | exact.isnan())
    ours, theirs, exact = (x[known].double() for x in (ours, theirs, exact))
    unit = torch.finfo(torch.float32 if theirs.dtype is torch.float64 else theirs.dtype).eps
    most = float((theirs - exact).abs().max()) if len(exact) else 0.0
    assert len(exact) == 0 or float((ours - exact).abs().max()) <= 2 * most + 1e-4 + unit


REFUSED = ("would not", "may be NaN in rows", "hold only for some sizes")
"""A program may compute something else in rows of which its masks leave nothing.

Next to the least number eager loses the number of keys, and so do gradients of what is added. A
mask of symbolic sizes may need to know them.
"""


# Lengths of which one leaves nothing, next to the least number and weights from logarithms.
LENGTHS = Program(
    Sizes(3, 1, 2, 1, 4, 1, 3),
    torch.float32,
    "plain",
    ("cast",),
    (("lengths", 1, True), ("lengths", 4, True)),
    False,
    "least",
    False,
    "logarithm",
    "plain",
    True,
)


@given(programs(9), st.booleans())
@example(LENGTHS, True)
@many(25)
def test_operator(program: Program, dynamic: bool) -> None:
    torch._dynamo.reset()
    counter = Counter()
    check(program, torch.compile(program.__call__, backend=counter), dynamic=dynamic)
    if counter.count == 0 and program.sizes.keys > 1:  # a single key is nothing to attend to
        assert program.masks
        said = counter.messages
        assert any(text in message for message in said for text in REFUSED), said
    assert counter.count <= 1


@pytest.mark.filterwarnings("error")
@given(programs(300), st.booleans())
@many(6)
def test_generated_kernels(program: Program, dynamic: bool) -> None:
    torch._dynamo.reset()
    options = {"strict": True, "cache": False}
    compiled = torch.compile(program.__call__, backend="lynx", options=options)
    check(program, compiled, dynamic=dynamic)
