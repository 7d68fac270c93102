"""Start gathers of parameters before they are needed, the same on all devices of a mesh."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable

from lynx.ir.core import Graph, Op
from lynx.ir.ops.collective import AllGather, Collective

from .assign_buckets import first_reads, made_of_inputs, payload

LIMIT = 256 << 20
"""The most bytes that are gathered ahead."""


def gather_ahead(graph: Graph, limit: int = LIMIT) -> Graph:
    """Return the graph in which gathers of inputs, or buckets of them, come one ahead.

    Each comes before the first op that reads what the one before it over the same axes gives, as in
    FSDP of PyTorch (Zhao et al. 2023, section 3.3.2): it travels while that op and those after it
    run. What would take more than `limit` bytes stays where it is, and so does a bucket that holds
    anything else: its members stay together.
    """
    early = _places(graph, limit)
    if not early:
        return graph
    ops: list[Op] = []
    done: set[Op] = set()
    for position, op in enumerate(graph.ops):
        for gather in early.get(position, ()):
            _emit(gather, ops, done)
        _emit(op, ops, done)
    return dataclasses.replace(graph, ops=tuple(ops))


def _places(graph: Graph, limit: int) -> dict[int, list[AllGather]]:
    """Return which gathers come before an op, by its position."""
    reads = first_reads(graph)
    groups: dict[tuple[str, ...], list[list[AllGather]]] = {}
    for group in _gathers(graph):
        groups.setdefault(group[0].axes, []).append(group)
    found: dict[int, list[AllGather]] = {}
    for known in groups.values():
        for before, group in itertools.pairwise(known):
            place = min((reads[op.out] for op in before if op.out in reads), default=None)
            if place is not None and sum(payload(op, graph.mesh) for op in group) <= limit:
                found.setdefault(place, []).extend(group)
    return found


def _gathers(graph: Graph) -> list[list[AllGather]]:
    """Return the gathers of inputs, those of a bucket together; none of a bucket with others."""
    inputs = made_of_inputs(graph)
    groups: dict[Hashable, list[Collective]] = {}
    for op in graph.ops:
        if isinstance(op, Collective):
            groups.setdefault(op.bucket if op.bucket >= 0 else op, []).append(op)
    gathers = ([op for op in group if isinstance(op, AllGather)] for group in groups.values())
    return [group for group in gathers if group and all(op.x in inputs for op in group)]


def _emit(op: Op, ops: list[Op], done: set[Op]) -> None:
    """Add an op after what it needs."""
    stack = [op]
    while stack:
        current = stack[-1]
        missing = [v.op for v in current.operands if v.op is not None and v.op not in done]
        if missing and current not in done:
            stack += reversed(missing)
            continue
        stack.pop()
        if current not in done:
            done.add(current)
            ops.append(current)
