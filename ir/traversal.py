"""Walk over graphs of any size: who uses what, what is needed, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .core import Graph, Op, Value


def users(graph: Graph) -> dict[Value, tuple[Op, ...]]:
    """Return the ops that use each value of the graph, in order and each once.

    Outputs and mutations are no ops; see `use_counts` for whether anything at all needs a value.
    """
    found: dict[Value, list[Op]] = {value: [] for value in values(graph)}
    for op in graph.ops:
        for operand in dict.fromkeys(op.operands):
            found.setdefault(operand, []).append(op)
    return {value: tuple(ops) for value, ops in found.items()}


def use_counts(graph: Graph) -> dict[Value, int]:
    """Return how often each value is an operand, an output, or the value of a mutation."""
    counts = dict.fromkeys(values(graph), 0)
    for op in graph.ops:
        for operand in op.operands:
            counts[operand] = counts.get(operand, 0) + 1
    for value in graph.uses:
        counts[value] = counts.get(value, 0) + 1
    return counts


def values(graph: Graph) -> list[Value]:
    """Return every value of the graph in order of definition."""
    return [*graph.inputs, *(result for op in graph.ops for result in op.results)]


def producers(roots: Iterable[Value]) -> list[Op]:
    """Return the ops that the values depend on, each after those that it depends on itself."""
    return _postorder([value.op for value in roots if value.op is not None], None)


def topological_order(ops: Sequence[Op]) -> list[Op]:
    """Return the ops with each after those whose results it uses, otherwise in their order."""
    return _postorder(ops, set(ops))


def _postorder(roots: Sequence[Op], within: set[Op] | None) -> list[Op]:
    """Return the roots and what they need, operands first; ops outside `within` are left out."""
    done: dict[Op, None] = {}
    stack = [(op, False) for op in reversed(roots)]
    while stack:
        op, is_ready = stack.pop()
        if op in done:
            continue
        if is_ready:
            done[op] = None
            continue
        stack.append((op, True))
        for operand in reversed(op.operands):
            needed = operand.op
            if needed is not None and needed not in done and (within is None or needed in within):
                stack.append((needed, False))
    return list(done)


def reachable(graph: Graph) -> list[Op]:
    """Return the ops that a use or an effect of the graph depends on, in the graph's order."""
    needed = set(graph.uses)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if not op.is_removable or not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(op.operands)
    return kept[::-1]


def dependents(graph: Graph, roots: Iterable[Value]) -> list[Op]:
    """Return the ops that depend on one of the values, in the graph's order."""
    changed = set(roots)
    found: list[Op] = []
    for op in graph.ops:
        if not changed.isdisjoint(op.operands):
            found.append(op)
            changed.update(op.results)
    return found
