"""Replace a projection and the cross-entropy behind it by one operator that holds no logits."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from lynx.backends.reference.dtypes import dtype_from_torch
from lynx.compat import is_batched, is_transformed, size_hint
from lynx.importer.locations import location_of
from lynx.operators import linear_cross_entropy
from lynx.passes import Remark

from .losses import Loss, loss_of
from .nodes import (
    Inserter,
    Node,
    Refusal,
    changes_grad_mode,
    is_same_shape,
    may_share_memory,
    tensor_of,
    traced,
    written_by,
)
from .projection import Projection, projection_of, rows_of, weight_of
from .reductions import Reduction, reduction_of

SUBJECT = "linear_cross_entropy"

TWICE = 32
"""How much larger logits must be to be computed twice, as gradients of single tokens' losses need:
it takes a third more time, which only memory can be worth."""


def fuse_linear_cross_entropy(graph: torch.fx.Graph, minimum_bytes: int) -> Iterator[Remark]:
    """Replace what is worth it in a graph, in place; yield what was done and why others stayed.

    Logits of less than `minimum_bytes` are left alone.
    """
    for node in list(graph.nodes):
        loc = location_of(node)
        try:
            loss = loss_of(node)
            if loss is None:
                continue
            message = _fuse(loss, minimum_bytes)
        except Refusal as refusal:
            message = f"not fused: {refusal.reason}"
        yield Remark(SUBJECT, message, loc)


def _fuse(loss: Loss, minimum_bytes: int) -> str:
    """Replace one loss, and say what was saved."""
    projection = projection_of(loss.scores, loss.axis, of_softmax=loss.of_softmax)
    reduction = reduction_of(loss.anchor) if loss.reduction == "none" else None
    anchor = loss.anchor if reduction is None else reduction.anchor
    replaced = {*projection.nodes, *loss.nodes, loss.anchor, anchor}
    replaced.update(() if reduction is None else reduction.nodes)
    _check_operands(projection)
    is_twice = _reduction(loss, reduction) == "none" and traced(anchor).requires_grad
    size = _check_size(loss, minimum_bytes * (TWICE if is_twice else 1))
    in_order = [node for node in anchor.graph.nodes if node in replaced]
    _check_uses(in_order, anchor)
    _check_between(projection, anchor, replaced)
    insert = Inserter(anchor)
    try:
        result = _substitute(loss, projection, reduction, insert)
        _check_result(result, anchor)
    except Refusal:
        insert.undo()
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        insert.undo()
        raise Refusal(f"the operator does not take it: {error}") from error
    anchor.replace_all_uses_with(result)
    for node in reversed(in_order):
        node.graph.erase_node(node)
    return f"fused: {size} of logits are never held"


def _check_operands(projection: Projection) -> None:
    operands = [projection.x, projection.weight]
    operands += [] if projection.bias is None else [projection.bias]
    device = traced(projection.node).device
    for operand in operands:
        value = traced(operand)
        if is_batched(value):
            raise Refusal("it runs for each element of a batch, inside vmap")
        if not value.is_floating_point() or value.device != device:
            raise Refusal(f"'{operand}' has another kind of elements, or device")


def _check_size(loss: Loss, minimum_bytes: int) -> str:
    """Return the memory that the logits take, in words, if it is enough."""
    shape = [size_hint(size) for size in traced(loss.scores).shape]
    if any(size is None for size in shape):
        raise Refusal("the number of tokens is not known")
    count = math.prod(size for size in shape if size is not None)
    size = count * max(4, traced(loss.scores).dtype.itemsize)
    words = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size} bytes"
    if size < minimum_bytes:
        raise Refusal(f"{words} of logits are too few to be worth it")
    return words


def _check_uses(replaced: Sequence[Node], anchor: Node) -> None:
    """Check that nothing else looks at what would no longer exist."""
    inside = set(replaced)
    for node in replaced:
        for user in node.users:
            if node is anchor or user in inside:
                continue
            what = "returned" if user.op == "output" else f"used by '{user}'"
            raise Refusal(f"'{node}', on the way from the projection to the loss, is also {what}")


def _check_between(projection: Projection, anchor: Node, replaced: set[Node]) -> None:
    """Check that operands are what they were, and recorded as they were, where the loss is."""
    given = (projection.x, projection.weight, projection.bias)
    operands = [operand for operand in given if operand is not None]
    needs_grad = any(traced(operand).requires_grad for operand in operands)
    is_cut = needs_grad and not traced(projection.node).requires_grad
    node = projection.node.next
    while node is not anchor:
        written = [] if node in replaced else written_by(node)
        if any(may_share_memory(target, operand) for target in written for operand in operands):
            raise Refusal(f"'{node}' writes to memory of an operand before the loss")
        if is_cut and changes_grad_mode(node):
            raise Refusal(f"'{node}' lies between the projection and the loss")
        node = node.next


def _substitute(
    loss: Loss, projection: Projection, reduction: Reduction | None, insert: Inserter
) -> Node:
    """Add the operator and what it needs; return what takes the place of the anchor."""
    rank = traced(loss.scores).dim()
    x = rows_of(projection, -1 if loss.axis == rank - 1 else loss.axis, insert)
    weight, bias = weight_of(projection, insert)
    given = (projection.x, projection.weight, projection.bias)
    x, weight, bias = (
        _cast(operand, source, projection.node, insert)
        for operand, source in zip((x, weight, bias), given, strict=True)
    )
    target = loss.target(insert)
    steps = projection.steps_in_order
    before, after = traced(loss.scores).dtype, traced(insert.anchor).dtype
    if after.itemsize > before.itemsize:
        steps.append(f"convert {dtype_from_torch(after)}")
    mask = None if reduction is None else reduction.mask
    if mask is not None and not is_same_shape(traced(mask).shape, loss.tokens):
        mask = insert.call("reshape_as", mask, target)
    operands = (x, weight, bias, target, loss.class_weight, mask)
    form = (_reduction(loss, reduction), loss.ignore, loss.smoothing, tuple(steps))
    wanted = _wanted(projection, insert.anchor, form[0])
    result = _call(insert, traced(projection.node), (*operands, *form, wanted))
    result = _scaled(result, loss, reduction, form[0], target, insert)
    if reduction is None and loss.keeps_axis:
        result = insert.call(torch.unsqueeze, result, loss.axis)
    return result if after.itemsize >= before.itemsize else insert.call("to", result, after)


def _cast(operand: Any, source: Any, product: Node, insert: Inserter) -> Any:
    """Convert what comes from an operand of the projection as autocast does inside of it."""
    dtype = traced(product).dtype
    if operand is None or traced(source).dtype is dtype:
        return operand
    return insert.call("to", operand, dtype)


def _reduction(loss: Loss, reduction: Reduction | None) -> str:
    """Return the reduction of the operator."""
    if reduction is None:
        return loss.reduction
    counts_all = reduction.mask is None and loss.class_weight is None and loss.ignore is None
    return "mean" if reduction.is_mean and counts_all else "sum"


def _wanted(projection: Projection, anchor: Node, reduction: str) -> tuple[bool, ...]:
    """Return which gradients to compute along with the loss."""
    if reduction == "none" or not traced(anchor).requires_grad:
        return (False, False, False)
    operands = (projection.x, projection.weight, projection.bias)
    return tuple(o is not None and traced(o).requires_grad for o in operands)


def _call(insert: Inserter, product: torch.Tensor, arguments: tuple[Any, ...]) -> Node:
    if is_transformed(product):  # which only the function knows how to transform
        return insert.call(linear_cross_entropy, *arguments)
    operation = torch.ops.lynx.linear_cross_entropy.default
    return insert.call(operator.getitem, insert.call(operation, *arguments), 0)


def _scaled(
    result: Node,
    loss: Loss,
    reduction: Reduction | None,
    computed: str,
    target: Node,
    insert: Inserter,
) -> Node:
    """Do to the result of the operator what the model does to the losses that it replaces."""
    factor = float(loss.sign)
    for kind, number in () if reduction is None else reduction.factors:
        if kind == "divide" and number == 0:
            raise Refusal("the loss is divided by zero")
        factor = factor * number if kind == "multiply" else factor / number
    if reduction is not None and reduction.is_mean and computed == "sum":
        count: Any = math.prod(loss.tokens)
        if isinstance(count, torch.SymInt):
            count = insert.call("numel", target)
        result = insert.call(torch.div, result, count)
    if factor == -1:
        return insert.call(torch.neg, result)
    return result if factor == 1 else insert.call(torch.mul, result, factor)


def _check_result(result: Node, anchor: Node) -> None:
    value, wanted = tensor_of(result), traced(anchor)
    if value is None and is_transformed(wanted):
        return
    assert value is not None
    if value.dtype != wanted.dtype or not is_same_shape(value.shape, wanted.shape):
        raise Refusal(f"the operator would give {value.dtype} of shape {tuple(value.shape)}")
