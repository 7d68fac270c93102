"""Each op between tensors that lie anyhow, in blocks and units too: the numbers of one device."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from lynx.backends.reference import run, run_on_mesh
from lynx.ir.core import Graph, Op
from lynx.ir.sharding import Mesh, parse_sharding
from lynx.ir.types import TensorType
from lynx.pass_context import pass_context
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import distribute
from tests.distribution.random_plans import random_mesh, random_sharding
from tests.distribution.test_rules import cases, in_double
from tests.samples.inputs import SAMPLES, draw

APART = ("constrain", "attention_backward", "max_pool_backward")
"""The first names axes of its own, the others have operands that belong together."""
KEYS = [
    key
    for case in cases()
    if SAMPLES[key := str(case.values[0])].op.name not in APART
    and any(isinstance(value.type, TensorType) for value in SAMPLES[key].op.operands)
]


def check(key: str, source: random.Random) -> None:
    """Draw a mesh, and how operands and results lie; compare what comes out."""
    op = in_double(SAMPLES[key].op)
    compare(key, op, *laid_out(op, random_mesh(source), source))


def compare(key: str, op: Op, graph: Graph, annotations: Annotations) -> None:
    values = draw(key, dataclasses.replace(SAMPLES[key], op=op))
    found = distribute(graph, annotations, pass_context(graph)).graph
    actual = run_on_mesh(found, [values[value] for value in graph.inputs])
    for one, other, value in zip(actual, run(op, values, {}, {}), graph.outputs, strict=True):
        if value is None or not isinstance(other, torch.Tensor):
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        is_low = isinstance(value.type, TensorType) and value.type.dtype.is_low_precision
        error = 3e-2 if is_low else 1e-5
        exact = not (other.is_floating_point() or other.is_complex())
        torch.testing.assert_close(
            one, other, rtol=0 if exact else 10 * error, atol=0 if exact else error, equal_nan=True,
            msg=lambda text: f"{key}: {annotations}: {text}",
        )  # fmt: skip


def laid_out(op: Op, mesh: Mesh, source: random.Random) -> tuple[Graph, Annotations]:
    inputs = tuple(dict.fromkeys(op.operands))
    outputs = tuple(value if isinstance(value.type, TensorType) else None for value in op.results)
    given = tuple(
        Annotation(random_sharding(source, mesh, value.type), 1)
        if isinstance(value.type, TensorType)
        else None
        for value in inputs
    )
    wanted = tuple(
        random_sharding(source, mesh, value.type)
        if value is not None and isinstance(value.type, TensorType) and source.random() < 0.5
        else None
        for value in outputs
    )
    return Graph("g", inputs, (op,), outputs), Annotations(mesh, given, wanted)


@pytest.mark.parametrize("key", KEYS)
def test_an_op_between_any_shardings(key: str) -> None:
    check(key, random.Random(key))


@pytest.mark.parametrize(
    ("key", "axes", "specs", "wanted"),
    [
        # One device has all of a factor: its dimension looks as if the outer one were cut.
        (
            "convolution-19-convolution_backward_weight",
            (3, 2),
            ("_, (b, a of 2) by 3, _", "_, a, _", "_, (b, a), _"),
            (None,),
        ),
        # Only one group: a cut of the dimension is none of groups.
        ("normalization-22-group_norm", (1, 3), ("b, a of 4", "(b, a)"), (None, "_, a", None)),
        # A single index.
        ("indexing-1-embedding", (7,), ("a, _", ""), (None,)),
    ],
)
def test_shardings_that_look_like_others(
    key: str, axes: tuple[int, ...], specs: tuple[str, ...], wanted: tuple[str | None, ...]
) -> None:
    op = in_double(SAMPLES[key].op)
    mesh = Mesh("mesh", tuple(zip("abc", axes, strict=False)))
    annotations = tuple(Annotation(parse_sharding(spec, mesh), 1) for spec in specs)
    promised = tuple(None if one is None else parse_sharding(one, mesh) for one in wanted)
    outputs = tuple(value if isinstance(value.type, TensorType) else None for value in op.results)
    graph = Graph("g", op.operands, (op,), outputs)
    compare(key, op, graph, Annotations(mesh, annotations, promised))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_all_ops_between_any_shardings(seed: int) -> None:
    for key in KEYS:
        check(key, random.Random(f"{key} {seed}"))
