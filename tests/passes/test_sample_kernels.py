"""The kernels of every sample: valid, read back from text, and computing what the ops mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.ir import (
    Graph,
    OpaqueType,
    TensorType,
    kernel_cost,
    kernel_key,
    parse_kernel,
    print_kernel,
    verify_kernel,
)
from lynx.ir.ops import Fused
from lynx.ir.ops.schedule import Start
from lynx.passes import Fuse, parse_pipeline
from tests.passes.test_fuse import BEFORE, generating
from tests.samples.inputs import SAMPLES, draw
from tests.tools.fused import kernels_of, values_by_kernels

WITHOUT_VALUES = ("empty",)
LOW = (torch.bfloat16, torch.float16)


def fused(key: str) -> Graph:
    """Return a sample as a graph of kernels and of what has none."""
    op = SAMPLES[key].op
    outputs = tuple(value for value in op.results if not isinstance(value.type, OpaqueType))
    graph = Graph("g", tuple(dict.fromkeys(op.operands)), (op,), outputs)
    context = generating(graph)
    return Fuse().run(parse_pipeline(BEFORE).run(graph, context), context)


def has_values(key: str) -> bool:
    """Whether a graph of the op alone computes something: what starts needs one that waits."""
    op = SAMPLES[key].op
    plain = not isinstance(op, Fused | Start)
    return not op.is_random and op.name not in WITHOUT_VALUES and plain


@pytest.mark.parametrize("key", [key for key in SAMPLES if has_values(key)])
def test_kernels_of_a_sample(key: str) -> None:
    graph = fused(key)
    for _, kernel in kernels_of(graph):
        verify_kernel(kernel)
        text = print_kernel(kernel)
        again = parse_kernel(text)
        assert print_kernel(again) == text
        assert kernel_key(again) == kernel_key(kernel)
        assert all(part >= 0 for part in kernel_cost(kernel))
    drawn = draw(key, SAMPLES[key])
    inputs = [drawn[value] for value in graph.inputs]
    expected, _ = evaluate(graph, inputs)
    for actual, wanted in zip(values_by_kernels(graph, inputs), expected, strict=True):
        compare(actual, wanted, SAMPLES[key].tolerance)


def compare(actual: Any, wanted: Any, tolerance: float) -> None:
    if not isinstance(wanted, torch.Tensor):
        assert actual == wanted
        return
    error = max(tolerance, 2e-2) if wanted.dtype in LOW else tolerance
    exact = not (wanted.is_floating_point() or wanted.is_complex())
    error = 0.0 if exact else error
    torch.testing.assert_close(actual, wanted, rtol=error, atol=error, equal_nan=True)


def test_most_samples_have_kernels() -> None:
    """So that the test above says something."""
    counts = [len(kernels_of(fused(key))) for key in list(SAMPLES)[::9] if has_values(key)]
    assert sum(map(bool, counts)) > len(counts) // 2


def test_types_are_kept() -> None:
    for key in list(SAMPLES)[::9]:
        if has_values(key):
            before = [v.type for v in SAMPLES[key].op.results if isinstance(v.type, TensorType)]
            after = [v.type for v in fused(key).outputs if v is not None]
            assert [t for t in after if isinstance(t, TensorType)] == before
