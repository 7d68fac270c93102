"""Write out calls of whole modules that attend, so that their attention can be recognised.

Dynamo leaves `multi_head_attention_forward` and the encoder layer for inference as one call each.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses

from lynx.compat import ENCODER_LAYER
from lynx.recognise.nodes import Inserter, Node, Refusal, bind, is_same_shape, tensor_of, traced

from .spellings import Spellings, recording_like

_MULTI_HEAD = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias",
    "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
    "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v",
    "average_attn_weights", "is_causal",
)  # fmt: skip
_ENCODER_LAYER = (
    "src", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias",
    "use_gelu", "norm_first", "eps", "norm_weight_1", "norm_bias_1", "norm_weight_2",
    "norm_bias_2", "ffn_weight_1", "ffn_bias_1", "ffn_weight_2", "ffn_bias_2", "mask",
    "mask_type",
)  # fmt: skip
Optional = Node | None


def is_module(node: Node) -> bool:
    """Whether a node is a call of a whole module that attends."""
    return node.op == "call_function" and node.target in _RULES


def open_modules(graph: torch.fx.Graph) -> Spellings:
    """Write out calls of modules, in place, until it is known what came of their attention."""
    spellings = Spellings()
    for node in [node for node in graph.nodes if is_module(node)]:
        insert = Inserter(node)
        function: Any = node.target
        try:
            with recording_like(node):
                found = _RULES[function](node, insert)
        except (Refusal, RuntimeError, TypeError, ValueError, KeyError):
            found = []
        if not found or not all(_is_alike(before, made) for before, made in found):
            insert.undo()
            continue
        for before, made in found:
            before.replace_all_uses_with(made)
            spellings.pairs.append((before, made, insert))
    return spellings


def _is_alike(before: Node, after: Node) -> bool:
    wanted, found = tensor_of(before), tensor_of(after)
    if wanted is None or found is None or wanted.dtype is not found.dtype:
        return False
    return (
        is_same_shape(wanted.shape, found.shape)
        and wanted.stride() == found.stride()
        and wanted.requires_grad == found.requires_grad
    )


def _multi_head(node: Node, insert: Inserter) -> list[tuple[Node, Node]]:
    given = bind(node, _MULTI_HEAD)
    if any(given.get(name) is not None for name in ("bias_k", "bias_v", "static_k", "static_v")):
        raise Refusal("it adds keys")
    if given["add_zero_attn"] or traced(given["query"]).dim() != 3:
        raise Refusal("it adds keys, or has no batch")
    count = given["num_heads"]
    heads = [_heads(insert, x, count, (1, 2, 0, 3)) for x in _projected(insert, given)]
    needs_weights, is_causal = given.get("need_weights", True), given.get("is_causal", False)
    dropped = given["dropout_p"] if given.get("training", True) else 0.0
    padding = given.get("key_padding_mask")
    is_causal = is_causal and padding is None and not needs_weights
    mask = None if is_causal else _mask(insert, heads[0], given.get("attn_mask"), padding)
    weights = None
    if needs_weights:
        product, weights = _with_weights(insert, heads, mask, dropped)
    else:
        product = insert.call(
            F.scaled_dot_product_attention, *heads,
            attn_mask=mask, dropout_p=dropped, is_causal=is_causal,
        )  # fmt: skip
    rows = insert.call(torch.flatten, insert.call(torch.permute, product, (2, 0, 1, 3)), 2)
    result = insert.call(F.linear, rows, given["out_proj_weight"], given["out_proj_bias"])
    if weights is not None and given.get("average_attn_weights", True):
        weights = insert.call(torch.mean, weights, 1)
    return _items(node, (result, weights))


def _items(node: Node, results: Sequence[Optional]) -> list[tuple[Node, Node]]:
    """Return the nodes that take items of a call, with what they are."""
    found: list[tuple[Node, Node]] = []
    for user in node.users:
        place = user.args[1] if user.target is operator.getitem else None
        item = results[place] if isinstance(place, int) else None
        if item is None:
            raise Refusal("its result is used as a whole")
        found.append((user, item))
    return found


def _projected(insert: Inserter, given: dict[str, Any]) -> list[Node]:
    """Return queries, keys and values, by as few products as the module makes."""
    sources = [given["query"], given["key"], given["value"]]
    bias = given["in_proj_bias"]
    if given.get("use_separate_proj_weight", False):
        weights = [given[f"{name}_proj_weight"] for name in "qkv"]
        biases = [None] * 3 if bias is None else _parts(insert, bias, 3)
        return [insert.call(F.linear, *x) for x in zip(sources, weights, biases, strict=True)]
    weight = given["in_proj_weight"]
    if sources[0] is sources[1] is sources[2]:
        return _parts(insert, insert.call(F.linear, sources[0], weight, bias), 3, -1)
    weights = _parts(insert, weight, 3)
    biases = [None] * 3 if bias is None else _parts(insert, bias, 3)
    return [insert.call(F.linear, *x) for x in zip(sources, weights, biases, strict=True)]


def _parts(insert: Inserter, node: Node, count: int, dim: int = 0) -> list[Node]:
    parts = insert.call(torch.chunk, node, count, dim)
    return [insert.call(operator.getitem, parts, n) for n in range(count)]


def _heads(insert: Inserter, node: Node, count: int, order: tuple[int, ...]) -> Node:
    depth = traced(node).shape[-1] // count
    return insert.call(torch.permute, insert.call("unflatten", node, -1, (count, depth)), order)


def _mask(insert: Inserter, q: Node, mask: Optional, padding: Optional) -> Optional:
    """Return what is added to scores `[batch, heads, queries, keys]`."""
    parts: list[Node] = []
    if mask is not None:
        mask = _added(insert, mask, traced(q).dtype)
        rank = traced(mask).dim()
        parts += [insert.call("unflatten", mask, 0, (-1, traced(q).shape[1])) if rank == 3 else
                  mask]  # fmt: skip
    if padding is not None:
        padding = _added(insert, padding, traced(q).dtype)
        for place in (1, 1):
            padding = insert.call(torch.unsqueeze, padding, place)
        parts.append(padding)
    if len(parts) == 2:
        return insert.call(torch.add, *parts)
    return parts[0] if parts else None


def _added(insert: Inserter, mask: Node, dtype: torch.dtype) -> Node:
    if traced(mask).dtype is not torch.bool:
        return mask
    nothing = insert.call(torch.zeros_like, mask, dtype=dtype)
    return insert.call(torch.masked_fill, nothing, mask, -math.inf)


def _with_weights(
    insert: Inserter, heads: Sequence[Node], mask: Optional, dropped: float
) -> tuple[Node, Node]:
    q, k, v = heads
    scaled = insert.call(torch.mul, q, math.sqrt(1.0 / float(traced(q).shape[-1])))
    scores = insert.call(torch.matmul, scaled, insert.call(torch.transpose, k, -2, -1))
    if mask is not None and traced(mask).dtype is torch.bool:
        scores = insert.call(torch.masked_fill, scores, mask, -math.inf)
    elif mask is not None:
        scores = insert.call(torch.add, mask, scores)
    weights = insert.call(torch.softmax, scores, -1)
    if dropped > 0:
        weights = insert.call(F.dropout, weights, dropped)
    return insert.call(torch.matmul, weights, v), weights


def _encoder_layer(node: Node, insert: Inserter) -> list[tuple[Node, Node]]:
    given = bind(node, _ENCODER_LAYER)
    if traced(given["src"]).dim() != 3:
        raise Refusal("it has no batch")

    def norm(x: Node, number: int) -> Node:
        weight, bias = given[f"norm_weight_{number}"], given[f"norm_bias_{number}"]
        return insert.call(F.layer_norm, x, (given["embed_dim"],), weight, bias, given["eps"])

    def feed_forward(x: Node) -> Node:
        x = insert.call(F.linear, x, given["ffn_weight_1"], given["ffn_bias_1"])
        x = insert.call(F.gelu if given["use_gelu"] else torch.relu, x)
        return insert.call(F.linear, x, given["ffn_weight_2"], given["ffn_bias_2"])

    x = given["src"]
    for number, part in ((1, _self_attention(insert, given)), (2, feed_forward)):
        if given["norm_first"]:
            x = insert.call(torch.add, x, part(norm(x, number)))
        else:
            x = norm(insert.call(torch.add, x, part(x)), number)
    return [(node, x)]


def _self_attention(insert: Inserter, given: dict[str, Any]) -> Callable[[Node], Node]:
    mask = given.get("mask")
    hidden = None if mask is None else _hidden(insert, mask, given["mask_type"])

    def attention(x: Node) -> Node:
        packed = insert.call(F.linear, x, given["qkv_weight"], given["qkv_bias"])
        count = given["num_heads"]
        heads = [
            _heads(insert, part, count, (0, 2, 1, 3)) for part in _parts(insert, packed, 3, -1)
        ]
        if hidden is None:
            product = insert.call(F.scaled_dot_product_attention, *heads)
        else:
            product = _with_weights(insert, heads, hidden, 0.0)[0]
        rows = insert.call(torch.flatten, insert.call(torch.transpose, product, 1, 2), 2)
        return insert.call(F.linear, rows, given["proj_weight"], given["proj_bias"])

    return attention


def _hidden(insert: Inserter, mask: Node, kind: Any) -> Node:
    """Return which scores an encoder layer leaves out: those where its mask is not zero."""
    if kind == 1:
        for place in (1, 1):
            mask = insert.call(torch.unsqueeze, mask, place)
    elif kind not in (0, 2):
        raise Refusal("its mask is not understood")
    return mask if traced(mask).dtype is torch.bool else insert.call(torch.ne, mask, 0)


_RULES: dict[Any, Callable[[Node, Inserter], list[tuple[Node, Node]]]] = {
    F.multi_head_attention_forward: _multi_head,
    ENCODER_LAYER: _encoder_layer,
}
