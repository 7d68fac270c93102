"""Write out calls of attention as the products and the softmax that they stand for."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from lynx.compat import FLEX_ATTENTION
from lynx.recognise.nodes import Inserter, Node, Refusal, is_same_size, tensor_of, traced

from .emission import Sizes, logarithms
from .plans import Plan
from .tracing import computing_dtype
from .vocabulary import kind_of

_SDPA = "scaled_dot_product_attention"
_SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale",
               "enable_gqa")  # fmt: skip


def is_call(node: Node) -> bool:
    """Whether a node is a call of attention as a whole."""
    return kind_of(node) == _SDPA or (node.op == "call_function" and node.target is FLEX_ATTENTION)


class Call:
    """A call of attention, with the nodes that compute the same before it."""

    def __init__(self, node: Node, insert: Inserter, output: Node) -> None:
        self.node = node
        self.insert = insert
        self.output = output
        self.is_flex = node.target is FLEX_ATTENTION
        for user in self.users:
            user.replace_all_uses_with(output)

    @property
    def users(self) -> list[Node]:
        """The nodes that are the output of the call."""
        if not self.is_flex:
            return [self.node]
        return [user for user in self.node.users if user.args[1] == 0]

    def undo(self) -> None:
        """Put the call back, and remove what was written out."""
        for user in self.users:
            self.output.replace_all_uses_with(user)
        self.insert.undo()

    def finish(self, plan: Plan, operation: Node) -> None:
        """Remove the call, whose output is computed by the operator now."""
        for user in list(self.node.users) if self.is_flex else []:
            if user.args[1] == 1 and user.users:
                after = Inserter(user)
                natural = logarithms(plan, after, operation)
                user.replace_all_uses_with(after.call(torch.div, natural, math.log(2)))
            self.node.graph.erase_node(user)
        self.node.graph.erase_node(self.node)


def written_out(node: Node) -> Call:
    """Add what a call computes before it, and let its users use that."""
    insert = Inserter(node)
    try:
        made = _flex(node, insert) if node.target is FLEX_ATTENTION else _sdpa(node, insert)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        insert.undo()
        raise Refusal(f"its arguments are not understood: {error}") from error
    except Refusal:
        insert.undo()
        raise
    return Call(node, insert, made)


def _sdpa(node: Node, insert: Inserter) -> Node:
    given: dict[str, Any] = {**dict(zip(_SDPA_NAMES, node.args, strict=False)), **node.kwargs}
    q, k, v = (given[name] for name in _SDPA_NAMES[:3])
    mask, dropped = given.get("attn_mask"), given.get("dropout_p", 0.0)
    causal, scale = given.get("is_causal", False), given.get("scale")
    if not isinstance(causal, bool) or not isinstance(dropped, int | float):
        raise Refusal("whether it is causal or drops anything is known only when it runs")
    if dropped and traced(node).device.type != "cpu":
        raise Refusal("what it drops is drawn inside of it")
    if any(traced(item).dim() < 2 for item in (q, k, v)):
        raise Refusal("queries, keys and values are no matrices")
    if given.get("enable_gqa"):
        k, v = (_repeated(insert, q, item) for item in (k, v))
    scores = insert.call(torch.matmul, q, insert.call(torch.transpose, k, -2, -1))
    scores = insert.call(torch.mul, scores, _scale(insert, q, scale))
    if causal:
        below = _lower_triangle(insert, scores)
        if dropped:
            mask = below
        else:
            above = insert.call(torch.logical_not, below)
            scores = insert.call(torch.masked_fill, scores, above, -math.inf)
    if mask is not None:
        scores = insert.call(torch.add, scores, _numbers(insert, mask, scores))
    if mask is None:
        weights = insert.call(torch.softmax, scores, -1)
    else:
        weights = insert.call(torch.ops.aten._safe_softmax.default, scores, -1)
    if dropped:
        weights = insert.call(torch.nn.functional.dropout, weights, float(dropped), True)
    return _like(insert.call(torch.matmul, weights, v), traced(node))


def _lower_triangle(insert: Inserter, scores: Node) -> Node:
    """Return where keys are not after queries."""
    sizes, value = Sizes(insert), traced(scores)
    shape = [sizes.node(sizes.reader.read(size)) for size in value.shape[-2:]]
    return insert.call(
        torch.tril, insert.call(torch.ones, shape, dtype=torch.bool, device=value.device)
    )


def _numbers(insert: Inserter, mask: Node, scores: Node) -> Node:
    """Return a mask as what is added to scores: what it hides stays NaN where it is NaN."""
    if traced(mask).dtype is not torch.bool:
        return mask
    value = traced(scores)
    zero, least = (
        insert.call(torch.scalar_tensor, number, dtype=value.dtype, device=value.device)
        for number in (0.0, -math.inf)
    )
    return insert.call(torch.where, mask, zero, least)


def _like(made: Node, wanted: torch.Tensor) -> Node:
    """Let a product lie in memory as the result of the call did."""
    value = traced(made)
    if value.dtype is not wanted.dtype or value.shape != wanted.shape:
        raise Refusal("its result is not understood")
    made.meta["example_value"] = wanted
    return made


def _scale(insert: Inserter, q: Node, scale: Any) -> Any:
    if scale is not None:
        return scale
    depth = traced(q).shape[-1]
    if isinstance(depth, int):
        return 1 / math.sqrt(depth)
    sizes = Sizes(insert)
    root = insert.call(torch.sym_sqrt, sizes.node(sizes.reader.read(depth)))
    return insert.call(operator.truediv, 1.0, root)


def _repeated(insert: Inserter, q: Node, item: Node) -> Node:
    """Repeat heads of keys or values as often as queries have them."""
    wanted, given = traced(q).shape[-3], traced(item).shape[-3]
    if is_same_size(wanted, given):
        return item
    if not isinstance(wanted, int) or not isinstance(given, int) or wanted % given:
        raise Refusal("the numbers of heads are not known")
    shape = [-1] * (traced(item).dim() + 1)
    shape[-3] = wanted // given
    item = insert.call(torch.unsqueeze, item, -3)
    return insert.call(torch.flatten, insert.call("expand", item, *shape), -4, -3)


def _flex(node: Node, insert: Inserter) -> Node:
    arguments: Any = node.args
    q, k, v, score_mod, block_mask, scale, _, score_buffers, mask_buffers = arguments
    if any(user.target is not operator.getitem or user.args[1] == 2 for user in node.users):
        raise Refusal("the maxima of its scores are used")
    if not isinstance(scale, int | float):
        raise Refusal("its scale is known only when it runs")
    if traced(q).shape[0] != traced(k).shape[0]:
        raise Refusal("keys are shared by the batch")
    score, mask = (_module_of(item) for item in (score_mod, block_mask[-1]))
    k, v = (_repeated(insert, q, item) for item in (k, v))
    scores = insert.call(torch.matmul, q, insert.call(torch.transpose, k, -2, -1))
    scores = insert.call(torch.mul, scores, float(scale))
    apply = _modification(score, mask, len(score_buffers))
    modified = _modified(insert, apply, scores, (*score_buffers, *mask_buffers))
    weights = insert.call(torch.ops.aten._safe_softmax.default, modified, -1)
    if traced(weights).dtype is not traced(v).dtype:
        weights = insert.call("to", weights, traced(v).dtype)
    product = insert.call(torch.matmul, weights, v)
    return _like(product, node.meta["example_value"][0])


def _module_of(node: Node) -> torch.nn.Module:
    module: Any = node.graph.owning_module
    if module is None:
        raise Refusal("its score function is not known")
    for part in str(node.target).split("."):
        module = getattr(module, part)
    assert isinstance(module, torch.nn.Module)
    return module


def _modification(
    score_mod: Callable[..., Any], mask_mod: Callable[..., Any], count: int
) -> Callable[..., torch.Tensor]:
    """Return what both functions make of all scores, of which they see one at a time."""

    def apply(scores: torch.Tensor, *buffers: torch.Tensor) -> torch.Tensor:
        scores = scores.to(computing_dtype(scores.dtype))
        indices = [torch.arange(size, device=scores.device) for size in scores.shape]
        result = _over_all(score_mod, (0,), count)(scores, *indices, *buffers[:count])
        kept = _over_all(mask_mod, (), len(buffers) - count)(*indices, *buffers[count:])
        return torch.where(kept, result, -math.inf)

    return apply


def _over_all(
    function: Callable[..., Any], first: Sequence[int], count: int
) -> Callable[..., torch.Tensor]:
    """Return a function of indices, and perhaps of scores, for all places at once."""
    for axis in (3, 2, 1, 0):
        indices = tuple(0 if n == axis else None for n in range(4))
        function = torch.vmap(function, in_dims=(*first, *indices, *(None,) * count))
    return function


def _modified(
    insert: Inserter, apply: Callable[..., Any], scores: Node, buffers: Sequence[Node]
) -> Node:
    graph = insert.anchor.graph
    with graph.inserting_before(insert.anchor):
        node = graph.call_function(apply, (scores, *buffers))
    insert.added.append(node)
    value = traced(scores)
    node.meta["example_value"] = value.to(computing_dtype(value.dtype)).clone()
    node.meta["lynx_kind"] = "where"
    if any(tensor_of(item) is None for item in buffers if isinstance(item, Node)):
        raise Refusal("its score function reads a number that is known only when it runs")
    return node
