"""Rules that are found by trials: which ones, which not, and that they hold on meshes."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import Any

import pytest
import torch

from lynx.backends.reference import run
from lynx.distribution import discovery
from lynx.distribution.discovery import find_rule, reason_of
from lynx.ir.core import Graph, Value
from lynx.ir.ops.aten import Aten
from lynx.ir.parser import parse_graph
from lynx.ir.printer import print_graph
from lynx.ir.sharding import Mesh, Split, parse_sharding
from lynx.ir.types import DType, TensorType
from lynx.pass_context import pass_context
from lynx.passes import PassContext
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.discover import with_found_rules
from lynx.passes.distribution.distribute import distribute
from lynx.passes.distribution.explain import Words, exchanges
from tests.distribution.harness import collectives
from tests.distribution.test_rules import RefusedError, check
from tests.distribution.unknown import OWN, call

aten = torch.ops.aten
TWO = Mesh("mesh", (("tp", 2),))
THREE = Mesh("mesh", (("tp", 3),))
SQUARE = Mesh("mesh", (("dp", 2), ("tp", 2)))


def r(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def definite(*shape: int) -> torch.Tensor:
    return r(*shape) @ r(*shape).mT + 9 * torch.eye(shape[-1], dtype=torch.float64)


SQUARES = (definite(5, 4, 4),)
ACCEPTED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "grid_sampler": (
        aten.grid_sampler_2d.default, (r(5, 4, 6, 6), r(5, 3, 7, 2), 0, 0, False),
        "d0 d1 1 1, d0 d2 d3 1 -> d0 d1 d2 d3",
    ),
    "grid_sampler_backward": (
        aten.grid_sampler_2d_backward.default,
        (r(5, 4, 3, 7), r(5, 4, 6, 6), r(5, 3, 7, 2), 0, 0, False, [True, True]),
        "d0 d1 d2 d3, d0 d1 1 1, d0 d2 d3 1 -> d0 d1 1 1, d0 d2 d3 1; sum: d1; sum: d2; sum: d3",
    ),
    "reflection_pad": (
        aten.reflection_pad2d.default, (r(5, 4, 3, 3), [1, 1, 1, 1]), "d0 d1 1 1 -> d0 d1 1 1",
    ),
    "replication_pad": (
        aten.replication_pad1d.default, (r(5, 4, 3), [1, 2]), "d0 d1 1 -> d0 d1 1",
    ),
    "cholesky": (aten.linalg_cholesky_ex.default, SQUARES, "d0 1 1 -> d0 1 1, d0"),
    "solve": (
        aten._linalg_solve_ex.default, (*SQUARES, r(5, 4, 3)),
        "d0 1 1, d0 1 1 -> d0 1 1, d0 1 1, d0 1, d0",
    ),
    "inv": (aten.linalg_inv_ex.default, SQUARES, "d0 1 1 -> d0 1 1, d0"),
    "qr": (aten.linalg_qr.default, (r(5, 4, 3),), "d0 1 1 -> d0 1 1, d0 1 1"),
    "svd": (aten._linalg_svd.default, (r(5, 4, 3),), "d0 1 1 -> d0 1 1, d0 1, d0 1 1"),
    "solve_triangular": (
        aten.linalg_solve_triangular.default, (*SQUARES, r(5, 4, 3), {"upper": True}),
        "d0 1 1, d0 1 d1 -> d0 1 d1",
    ),
    "glu": (aten.glu.default, (r(5, 6), 1), "d0 1 -> d0 1"),
    "cdist": (
        aten._cdist_forward.default, (r(3, 5, 4), r(3, 6, 4), 2.0, None),
        "d0 d1 1, d0 d2 1 -> d0 d1 d2",
    ),
    "fft": (aten._fft_r2c.default, (r(5, 6), [1], 0, True), "d0 1 -> d0 1"),
    "upsample": (
        aten.upsample_bilinear2d.default, (r(5, 4, 3, 3), [6, 6], False),
        "d0 d1 1 1 -> d0 d1 1 1",
    ),
    "upsample_backward": (
        aten.upsample_bilinear2d_backward.default, (r(4, 4, 6, 6), [6, 6], [4, 4, 3, 3], False),
        "d0 d1 1 1 -> d0 d1 1 1; argument 2.0: d0; argument 2.1: d1",
    ),
    "unfold": (
        aten.im2col.default, (r(5, 4, 6, 6), [2, 2], [1, 1], [0, 0], [2, 2]), "d0 1 1 1 -> d0 1 1",
    ),
    "pixel_shuffle": (aten.pixel_shuffle.default, (r(5, 8, 3, 3), 2), "d0 1 1 1 -> d0 1 1 1"),
    "attention": (
        aten._scaled_dot_product_flash_attention_for_cpu.default, (r(3, 4, 6, 8),) * 3,
        "d0 d1 d2 1, d0 d1 1 1, d0 d1 1 1 -> d0 d1 d2 1, d0 d1 d2",
    ),
    "product": (aten.mm.default, (r(5, 4), r(4, 3)), "d0 d1, d1 d2 -> d0 d2; sum: d1"),
    "own": (OWN.scaled.default, (r(5, 4), r(4)), "d0 d1, d1 -> d0 d1"),
    "own_sum": (
        OWN.correlate.default, (r(5, 4, 3), r(5, 4, 6)),
        "d0 d1 d2, d0 d1 d3 -> d2 d3; sum: d0; sum: d1",
    ),
}  # fmt: skip
"""Operators with a call of each, and the rule that is found."""

NEAR: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "softmax": (aten._softmax.default, (r(5, 4), 0, False), "1 d0 -> 1 d0"),
    "flip": (aten.flip.default, (r(5, 4), [0]), "1 d0 -> 1 d0"),
    "cumsum": (aten.cumsum.default, (r(5, 4), 0), "1 d0 -> 1 d0"),
    "sort": (aten.sort.default, (r(5, 4), 0), "1 d0 -> 1 d0, 1 d0"),
    "causal": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (*(r(3, 4, 6, 8),) * 3, 0.0, True),
        "d0 d1 1 1, d0 d1 1 1, d0 d1 1 1 -> d0 d1 1 1, d0 d1 1",
    ),
    "normalized": (OWN.normalized.default, (r(5, 4),), "1 d0 -> 1 d0"),
    "clipped": (OWN.clipped.default, (r(5, 4),), ""),
    "quantized": (OWN.quantized.default, (r(5, 4),), ""),
    "of_many": (OWN.of_many.default, (r(32, 4),), "1 d0 -> 1 d0"),
    "of_two": (OWN.of_two.default, (r(5, 4),), "1 d0 -> 1 d0"),
    "first_changed": (OWN.first_changed.default, (r(5, 4),), "1 d0 -> 1 d0"),
    "mirrored": (OWN.mirrored.default, (r(5, 4), r(5, 4)), "1 d0, 1 d0 -> 1 d0"),
    "positive_sum": (OWN.positive_sum.default, (r(5, 4),), "1 d0 -> d0"),
    "single_sum": (OWN.single_sum.default, (r(5, 4).float(),), ""),
    "crashing": (OWN.crashing.default, (r(5, 6),), "d0 1 -> d0 1"),
}  # fmt: skip
"""Operators that cannot be cut along something that looks like it, and the rest of their rules."""

REFUSED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "noisy": (OWN.noisy.default, (r(5, 4),), "something else each time"),
    "looked_up": (OWN.looked_up.default, (r(5, 4), torch.tensor([1, 0])), "it takes integers"),
    "as_strided": (aten.as_strided.default, (r(5, 4), [5, 2], [4, 1]), "lies in memory"),
    "all_reduce": (
        torch.ops._c10d_functional.wait_tensor.default, (r(4),), "it communicates",
    ),
    "clipped": (OWN.clipped.default, (r(5, 4),), "no pieces of its results"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ACCEPTED, *(f"near {name}" for name in NEAR)])
def test_rules_that_are_found(name: str) -> None:
    operator, arguments, rule = (ACCEPTED | {f"near {key}": one for key, one in NEAR.items()})[name]
    assert find_rule(call(operator, *arguments)[0]).rule == rule


@pytest.mark.parametrize("name", REFUSED)
def test_reasons_why_there_is_no_rule(name: str) -> None:
    operator, arguments, reason = REFUSED[name]
    op, _ = call(operator, *arguments)
    assert reason in find_rule(op).reason
    assert reason in reason_of(op)


@pytest.mark.parametrize("name", ACCEPTED)
def test_found_rules_hold_on_meshes(name: str) -> None:
    """Each factor is cut on two, three and four devices, and each pair of them on four."""
    operator, arguments, rule = ACCEPTED[name]
    op, tensors = call(operator, *arguments)
    op = dataclasses.replace(op, rule=rule)
    values = dict(zip(op.operands, tensors, strict=True))
    expected = run(op, values, {}, {})
    space = op.space()
    assert space is not None
    names = [factor.name for factor in space.factors]
    ways = [({one: Split(("tp",))}, mesh) for one in names for mesh in (TWO, THREE)]
    ways += [({one: Split(("dp", "tp"))}, SQUARE) for one in names]
    ways += [
        ({one: Split(("dp",)), other: Split(("tp",))}, SQUARE)
        for one in names for other in names if one < other
    ]  # fmt: skip
    for splits, mesh in ways:
        with contextlib.suppress(RefusedError):
            check(op, values, expected, splits, mesh, 1e-9)


def graph_of(op: Aten) -> Graph:
    return Graph("g", op.operands, (op,), op.results)


def test_a_found_rule_is_a_part_of_the_text() -> None:
    op, _ = call(aten.glu.default, r(5, 6), 1)
    context = pass_context(graph_of(op))
    found = with_found_rules(graph_of(op), context)
    text = print_graph(found)
    assert 'rule = "d0 1 -> d0 1"' in text
    assert print_graph(parse_graph(text)) == text
    (remark,) = context.remarks
    assert remark.message == "'aten.glu.default' can be cut as 'd0 1 -> d0 1', found by trials"


def test_it_is_cut_where_it_was_gathered() -> None:
    op, _ = call(aten.grid_sampler_2d.default, r(5, 4, 6, 6), r(5, 3, 7, 2), 0, 0, False)
    graph = graph_of(op)
    spec = Annotation(parse_sharding("tp, _, _, _", TWO), 0)
    for context, count in ((pass_context(graph), {}), (PassContext(), {"all_gather tp": 2})):
        found = distribute(graph, Annotations(TWO, (spec, spec)), context)
        assert collectives(found.graph) == count


def test_it_is_said_why_something_is_gathered() -> None:
    """By a rule that trials found, or because there is none."""
    words = Words(note=reason_of)
    op, _ = call(aten._softmax.default, r(5, 4), 0, False)
    other, _ = call(OWN.looked_up.default, r(5, 4), torch.tensor([1, 0]))
    whole = Annotation(parse_sharding("tp, _", TWO), 0)
    said = []
    for one in (op, other):
        graph = graph_of(one)
        inputs = (whole, None)[: len(graph.inputs)]
        found = distribute(graph, Annotations(TWO, inputs), pass_context(graph))
        (exchange,) = exchanges(found, words)
        said.append(exchange.reason)
    assert said == [
        "'aten._softmax' needs the whole of dimension 0 (its rule was found by trials)",
        "'lynx_trials.looked_up' needs the whole of it (it takes integers, and nobody knows which "
        "ones are allowed)",
    ]


def test_what_depends_on_no_input_is_not_tried() -> None:
    op, _ = call(aten.glu.default, r(5, 6), 1)
    outside = Graph("g", (), (op,), op.results)
    assert with_found_rules(outside, pass_context(outside)) is outside


def test_symbolic_sizes_are_not_tried() -> None:
    x = parse_graph("graph @g(%x: f32[s0, 4]) symbols (s0) { return %x }").inputs[0]
    assert find_rule(Aten("aten.glu.default", (x, 1), (), (x.type,))).reason == (
        "its sizes are symbolic"
    )


def test_large_operators_are_tried_in_small() -> None:
    x, grid = (Value(TensorType(DType.F32, s)) for s in ((64, 96, 512, 512), (64, 512, 512, 2)))
    result = TensorType(DType.F32, (64, 96, 512, 512))
    op = Aten("aten.grid_sampler_2d.default", (x, grid, 0, 0, False), (), (result,))
    assert find_rule(op).rule == "d0 d1 1 1, d0 d2 d3 1 -> d0 d1 d2 d3"


def test_operators_of_users_are_tried_in_each_of_their_sizes() -> None:
    """One that does something else with many rows is found out, if it has too many elements too."""
    x, scale, result = (TensorType(DType.F32, s) for s in ((4096, 1024), (1024,), (4096, 1024)))
    scaled = Aten("lynx_trials.scaled.default", (Value(x), Value(scale)), (), (result,))
    assert find_rule(scaled).rule == "d0 d1, d1 -> d0 d1"
    of_many = Aten("lynx_trials.of_many.default", (Value(x),), (), (result,))
    assert find_rule(of_many).rule == "1 d0 -> 1 d0"


def test_nothing_of_the_program_changes() -> None:
    """Random numbers of the user, modes, and threads stay as they are."""
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    discovery._KNOWN.clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        op, _ = call(OWN.noisy.default, torch.empty(5, 4))
        torch.set_rng_state(before[0])
        assert "something else" in find_rule(op).reason
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), torch.get_num_threads()) == before[1:]


def test_an_operator_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_MOST_SECONDS", 0.5)
    monkeypatch.setattr(discovery, "_KNOWN", {})
    op, _ = call(OWN.endless.default, r(4, 3))
    assert find_rule(op).reason == "it took too long in trials"


def test_equal_ops_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_KNOWN", {})
    first, _ = call(aten.glu.default, r(5, 6), 1)
    rule = find_rule(first)
    monkeypatch.setattr(discovery, "_searched", lambda op: pytest.fail("it was tried again"))
    second, _ = call(aten.glu.default, r(5, 6), 1)
    assert find_rule(second) is rule
