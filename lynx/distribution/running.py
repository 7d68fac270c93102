"""What is put around the compiled function of one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from lynx.backends.reference.communication import communicators
from lynx.backends.reference.schedule import abandon
from lynx.ir.core import Graph
from lynx.ir.ops.communication import Communication
from lynx.ir.types import TensorType
from lynx.passes.distribution.ranks import order_text
from lynx.runtime import Executable

from .agreement import Agreement
from .groups import Group

Boxed = Callable[[list[Any]], Any]


def entered(function: Boxed, graph: Graph, agreement: Agreement) -> Boxed:
    """Let a program of one process use the groups of its mesh, which are made before it first runs.

    Before that all processes agree on the program, so that they make the same groups, and on the
    order of its communication, so that none waits for what never comes.
    """
    if isinstance(function, Executable):
        text = f"{agreement.text}\n{order_text(function.program)}"
        agreement = dataclasses.replace(agreement, text=text)
    axes = tuple(dict.fromkeys(op.axes for op in graph.ops if isinstance(op, Communication)))
    inner = with_strides(graph, function)
    groups: dict[tuple[str, ...], Group] = {}

    def run(arguments: list[Any]) -> Any:
        if len(groups) != len(axes):
            groups.update({names: agreement.groups.group(names) for names in axes})
        before = dict(communicators)
        communicators.update(groups)
        try:
            return inner(arguments)
        except BaseException:
            abandon()
            raise
        finally:
            communicators.clear()
            communicators.update(before)

    return agreed(agreement, run)


def agreed(agreement: Agreement, function: Boxed) -> Boxed:
    """Let all processes compare programs before the first call."""
    reached = False

    def run(arguments: list[Any]) -> Any:
        nonlocal reached
        if not reached:
            agreement.reach()
            reached = True
        return function(arguments)

    return run


def with_strides(graph: Graph, function: Boxed) -> Boxed:
    """Lay inputs into memory as the graph was promised; copies what lies otherwise."""
    expected = [
        (position, spec.strides)
        for position, (value, spec) in enumerate(zip(graph.inputs, graph.input_specs, strict=True))
        if isinstance(value.type, TensorType) and spec.strides is not None
    ]
    written = {graph.inputs.index(one.target) for one in graph.mutations}

    def run(arguments: list[Any]) -> Any:
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        for position, strides in expected:
            given = arguments[position]
            if given is None:  # a token, which orders effects
                continue
            if given.stride() != strides and given.numel() > 0:
                laid = torch.empty_strided(
                    given.shape, strides, dtype=given.dtype, device=given.device
                )
                arguments[position] = laid.copy_(given)
                if position in written:
                    back.append((given, laid))
        results = function(arguments)
        for given, laid in back:
            given.copy_(laid)
        return results

    return run
