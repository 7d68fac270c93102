"""The score function of attention as text: from `[batch, heads, queries, keys]` to the same."""

from __future__ import annotations

from collections.abc import Sequence

from lynx.ir.core import Graph, Value
from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.errors import LynxError
from lynx.ir.ops.elementwise_arithmetic import Cast
from lynx.ir.ops.fusion import Region
from lynx.ir.ops.layout import Permute, Reshape
from lynx.ir.score import score_text
from lynx.ir.traversal import producers
from lynx.ir.types import TensorType
from lynx.passes import PassContext
from lynx.passes.fusion.emit import why_not
from lynx.recognise.nodes import Refusal

from .axes import Dims
from .plans import Groups, Layout
from .tracing import CLEAN


def rearranged(value: Value, before: Groups, after: Dims) -> Value:
    """Return a value whose dimensions run along other groups of the same atoms."""
    given, wanted = ([atom for group in groups for atom in group] for groups in (before, after))
    if sorted(map(repr, given)) != sorted(map(repr, wanted)):
        raise Refusal("scores lack axes of the weights: they are no products of queries with keys")
    value = _reshaped(value, [atom.size for atom in given])
    order = tuple(given.index(atom) for atom in wanted)
    if order != tuple(range(len(order))):
        value = Permute(value, order).out
    return _reshaped(value, [product(atom.size for atom in group) for group in after])


def _reshaped(value: Value, shape: Sequence[Dim]) -> Value:
    same = len(shape) == len(value.shape) and all(map(is_equal, shape, value.shape))
    return value if same else Reshape(value, tuple(shape)).out


def score_of(
    layout: Layout,
    result: Value,
    result_dims: Dims,
    scores: Value,
    scores_dims: Dims,
    operands: Sequence[Value],
) -> tuple[str, tuple[Dim, ...], list[int]]:
    """Return the text of the score function, its sizes, and which operands it uses.

    `result` is computed of `scores` and operands; both have other axes than attention has.
    """
    shape = tuple(product(atom.size for atom in group) for group in layout.scores)
    type_ = scores.tensor_type
    dot = Value(TensorType(type_.dtype, shape, type_.device), name="dot")
    try:
        values: dict[Value, Value] = {scores: rearranged(dot, layout.scores, scores_dims)}
        for op in producers([result]):
            made = op.replace_operands(values)
            if made is not op:
                values.update(zip(op.results, made.results, strict=True))
        end = rearranged(values.get(result, result), result_dims, layout.scores)
        if end.tensor_type.dtype is not type_.dtype:
            end = Cast(end, type_.dtype).out
    except LynxError as error:
        raise Refusal(f"its score function is not understood: {error.message}") from error
    return _text(dot, end, operands)


def _text(
    dot: Value, result: Value, operands: Sequence[Value]
) -> tuple[str, tuple[Dim, ...], list[int]]:
    ops = tuple(producers([result]))
    for op in ops:
        reason = why_not(op)
        if reason:
            raise Refusal(f"'{op.name}', of which its scores are made, {reason}")
    graph = Graph("score", (dot, *operands), ops, (result,))
    graph = CLEAN.run(graph, PassContext(), (), verify=False)
    (end,) = graph.outputs
    assert end is not None
    if end is dot:
        return "", (), []
    used = {operand for op in graph.ops for operand in op.operands} | {end}
    places = [n for n, operand in enumerate(operands) if operand in used]
    parameters = (dot, *(operands[n] for n in places))
    if any(not isinstance(value.type, TensorType) for value in parameters):
        raise Refusal("its scores depend on a number that is known only when it runs")
    text, sizes = score_text(Region(parameters, graph.ops, (end,)))
    return text, sizes, places
