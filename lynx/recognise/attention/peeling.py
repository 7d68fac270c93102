"""Undo what repeats heads of keys and values: attention reads one for several heads of queries."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.compat import traced_graph
from lynx.importer import import_graph
from lynx.ir.core import Value
from lynx.ir.errors import LynxError
from lynx.recognise.nodes import Node, Refusal, tensor_of

from .tracing import Replay, fresh, tracing
from .vocabulary import LAYOUT, REPEATING, kind_of

_CHAINED = LAYOUT - {"cat", "concat", "concatenate", "stack", "split", "chunk", "unbind", "roll",
                     "flip", "pad", "detach"}  # fmt: skip


@dataclass(frozen=True)
class Peeled:
    """A tensor without repetitions, and a Lynx graph that makes the repeated one of it."""

    node: Node
    parameter: Value
    result: Value


def peeled(node: Node) -> Peeled | None:
    """Return what a tensor is a rearrangement of that repeats elements; None if nothing repeats."""
    chain: list[Node] = []
    longest = 0
    source = node
    while kind_of(source) in _CHAINED:
        tensors = [n for n in source.all_input_nodes if tensor_of(n) is not None]
        if not tensors or source.args[:1] != (tensors[0],):
            break
        if len(tensors) > 1 and kind_of(source) not in ("expand_as", "view_as", "reshape_as"):
            break
        chain.append(source)
        source = tensors[0]
        if kind_of(chain[-1]) in REPEATING:
            longest = len(chain)
    if not longest:
        return None
    chain = chain[:longest][::-1]
    try:
        return _traced(chain)
    except (Refusal, LynxError):
        return None


def _traced(chain: list[Node]) -> Peeled | None:
    (source, *_) = (n for n in chain[0].all_input_nodes if tensor_of(n) is not None)
    value = tensor_of(source)
    assert value is not None
    others = [n for node in chain for n in node.all_input_nodes
              if n is not source and n not in chain]  # fmt: skip

    def compute(x: object, *rest: object) -> object:
        known = dict(zip([source, *others], [x, *rest], strict=True))
        Replay(()).run(chain, known)
        return known[chain[-1]]

    with tracing(value):
        given = [n.meta["example_value"] for n in others]
        detached = [fresh(v.detach()) if tensor_of(n) is not None else v
                    for n, v in zip(others, given, strict=True)]  # fmt: skip
        module = traced_graph(compute, (fresh(value.detach()), *detached))
    graph = import_graph(module, "keys")
    (result,) = graph.outputs
    if result is None or graph.mutations:
        return None
    return Peeled(source, graph.inputs[0], result)
