"""Write products near a softmax as those that are understood, until it is known what they are.

Sums of elementwise products, `tensordot`, `inner`, products to which something is added, and
quotients of a product and the sum of its weights become `einsum` and the like. What no attention
was made of is as the model wrote it again, once all sites were looked at.
"""

from __future__ import annotations

import contextlib
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from lynx.recognise.nodes import Inserter, Node, Refusal, bind, is_same_shape, traced

from .contractions import Labels, contraction_of, is_contraction
from .vocabulary import CONTRACTIONS, EXPONENTIALS, WALKABLE, kind_of
from .writes import targets_of

MODULES = frozenset(("multi_head_attention_forward", "_transformer_encoder_layer_fwd"))
"""Calls that draw and write nothing but what they return."""

_LETTERS = string.ascii_letters
Rule = Callable[[Node, Inserter, "_Near"], Node | None]


@dataclass
class Spellings:
    """What was written in other words: the nodes of the model, and those instead of them."""

    pairs: list[tuple[Node, Node, Inserter]] = field(default_factory=list)

    def undo(self) -> None:
        """Put back what nothing was made of, and remove what nothing needs any more."""
        put_back = [pair for pair in self.pairs if not _is_used(pair[2])]
        for node, made, _ in reversed(put_back):
            made.replace_all_uses_with(node)
        for _, _, insert in reversed(self.pairs):
            for added in reversed(insert.added):
                if _is_present(added) and not added.users:
                    added.graph.erase_node(added)
        for node, _, _ in reversed(self.pairs):
            _erase_unused(node)


def _is_used(insert: Inserter) -> bool:
    """Whether attention was made of a product or a call among nodes."""
    return any(not _is_present(node) for node in insert.added)


def _is_present(node: Node) -> bool:
    return not node._erased


def _erase_unused(node: Node) -> None:
    stack = [node]
    while stack:
        item = stack.pop()
        if not _is_present(item) or item.users or not _is_pure(item):
            continue
        operands = item.all_input_nodes
        item.graph.erase_node(item)
        stack += operands


def _is_pure(node: Node) -> bool:
    known = WALKABLE | CONTRACTIONS | MODULES | _RULES.keys()
    return kind_of(node) in known and not targets_of(node)


def is_unused(node: Node) -> bool:
    """Whether nothing that is needed comes of a node."""
    seen = {node}
    stack = [node]
    while stack:
        item = stack.pop()
        if not _is_pure(item) or len(seen) > 16:
            return False
        new = [user for user in item.users if user not in seen]
        seen.update(new)
        stack += new
    return True


@dataclass(frozen=True)
class _Near:
    """The nodes of which exponentials are made, and what is made of them, up to products."""

    before: dict[Node, None]
    after: dict[Node, None]

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> _Near:
        starts = [node for node in graph.nodes if kind_of(node) in EXPONENTIALS]
        return cls(
            _reached(starts, lambda node: node.all_input_nodes),
            _reached(starts, lambda node: node.users),
        )


def _reached(starts: Sequence[Node], step: Callable[[Node], Iterable[Node]]) -> dict[Node, None]:
    found = dict.fromkeys(starts)
    stack = list(starts)
    while stack:
        for node in step(stack.pop()):
            if node not in found:
                found[node] = None
                if kind_of(node) in WALKABLE:
                    stack.append(node)
    return found


def respell(graph: torch.fx.Graph) -> Spellings:
    """Write what may be a product of attention in words that are understood, in place."""
    spellings = Spellings()
    candidates = [node for node in graph.nodes if kind_of(node) in _RULES]
    if not candidates:
        return spellings
    near = _Near.of(graph)
    for node in candidates:
        if node not in near.before and node not in near.after:
            continue
        insert = Inserter(node)
        made = _respelled(node, insert, near)
        if made is None or made not in insert.added:
            insert.undo()
            continue
        node.replace_all_uses_with(made)
        for added in insert.added:
            near.after[added] = None
            added.meta["lynx_respelled"] = True
        spellings.pairs.append((node, made, insert))
    return spellings


def recording_like(node: Node) -> contextlib.AbstractContextManager[Any]:
    """Return the mode of recording gradients in which a node was traced."""
    values = node.meta.get("example_value")
    tensors = values if isinstance(values, tuple | list) else (values,)
    needs = any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
    return torch.set_grad_enabled(needs)


def _respelled(node: Node, insert: Inserter, near: _Near) -> Node | None:
    try:
        with recording_like(node):
            made = _RULES[kind_of(node)](node, insert, near)
        if made is None:
            return None
        before, after = traced(node), traced(made)
    except (Refusal, RuntimeError, TypeError, ValueError, IndexError, KeyError):
        return None
    same = before.dtype is after.dtype and is_same_shape(before.shape, after.shape)
    return made if same and before.requires_grad == after.requires_grad else None


# sums of products


def _summed(node: Node, insert: Inserter, _: _Near) -> Node | None:
    """Write a sum of an elementwise product as einsum: `(a * b).sum(d) ==> einsum(a, b)`."""
    given = bind(node, ("input", "dim", "keepdim"))
    product = given["input"]
    if kind_of(product) not in ("mul", "multiply") or list(product.users) != [node]:
        return None
    a, b = product.args
    if not isinstance(a, Node) or not isinstance(b, Node) or a is b or product.kwargs:
        return None
    return _sum_of(a, b, given.get("dim"), given.get("keepdim", False), insert)


def _sum_of(a: Node, b: Node, dim: Any, keepdim: Any, insert: Inserter) -> Node | None:
    first, second = traced(a), traced(b)
    rank = max(first.dim(), second.dim())
    dims = [dim] if isinstance(dim, int) else dim
    if not dims or not isinstance(keepdim, bool) or not _is_repeated(first, second):
        return None
    letters = _LETTERS[:rank]
    summed = sorted(place % rank for place in dims)
    kept = "".join(letter for n, letter in enumerate(letters) if n not in summed)
    of_a, of_b = (letters[rank - x.dim() :] for x in (first, second))
    made = insert.call(torch.einsum, f"{of_a},{of_b}->{kept}", a, b)
    for place in summed if keepdim else ():
        made = insert.call(torch.unsqueeze, made, place)
    return made


def _is_repeated(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an elementwise product repeats one of its operands."""
    if a.dtype is not b.dtype or not a.is_floating_point() or not a.dim() or not b.dim():
        return False
    pairs = list(zip(reversed(a.shape), reversed(b.shape), strict=False))
    ones = [(isinstance(m, int) and m == 1, isinstance(n, int) and n == 1) for m, n in pairs]
    return a.dim() != b.dim() or any(m != n for m, n in ones)


def _vecdot(node: Node, insert: Inserter, _: _Near) -> Node | None:
    given = bind(node, ("x", "y", "dim"))
    return _sum_of(given["x"], given["y"], given.get("dim", -1), False, insert)


def _cosine(node: Node, insert: Inserter, _: _Near) -> Node | None:
    """Write cosines as products of rows of length one."""
    given = bind(node, ("x1", "x2", "dim", "eps"))
    dim, eps = given.get("dim", 1), given.get("eps", 1e-8)
    rank = max(traced(given["x1"]).dim(), traced(given["x2"]).dim())
    if not isinstance(dim, int):
        return None
    dim = dim % rank - rank
    rows = []
    for x in (given["x1"], given["x2"]):
        length = insert.call(torch.linalg.vector_norm, x, dim=dim, keepdim=True)
        rows.append(insert.call(torch.div, x, insert.call(torch.clamp_min, length, eps)))
    return _sum_of(rows[0], rows[1], dim, False, insert)


def _tensordot(node: Node, insert: Inserter, _: _Near) -> Node | None:
    given = bind(node, ("a", "b", "dims"))
    a, b, dims = given["a"], given["b"], given.get("dims", 2)
    first, second = traced(a).dim(), traced(b).dim()
    if isinstance(dims, int):
        pairs = [(first - dims + n, n) for n in range(dims)]
    else:
        pairs = list(zip(*([d] if isinstance(d, int) else d for d in dims), strict=True))
    of_a = list(_LETTERS[:first])
    of_b = list(_LETTERS[first : first + second])
    for m, n in pairs:
        of_b[n] = of_a[m]
    kept = [x for x in of_a if x not in of_b] + [x for x in of_b if x not in of_a]
    return insert.call(torch.einsum, f"{''.join(of_a)},{''.join(of_b)}->{''.join(kept)}", a, b)


def _inner(node: Node, insert: Inserter, near: _Near) -> Node | None:
    a, b = node.args
    if not traced(a).dim() or not traced(b).dim():
        return None
    last = (traced(a).dim() - 1, traced(b).dim() - 1)
    outer = [_LETTERS[: last[0]], _LETTERS[last[0] : sum(last)]]
    end = _LETTERS[sum(last)]
    return insert.call(torch.einsum, f"{outer[0]}{end},{outer[1]}{end}->{''.join(outer)}", a, b)


def _einsum(node: Node, insert: Inserter, _: _Near) -> Node | None:
    """Write sublists as letters, and multiply one operand by a third that has its axes only."""
    equation, operands = _equation(node)
    terms, arrow, result = equation.partition("->")
    labels = terms.split(",")
    if node.args[0] == equation and len(operands) == 2:
        return None
    if not arrow or "." in equation or len(labels) != len(operands):
        return None
    while len(operands) > 2:
        place = _factor(labels)
        if place is None:
            return None
        factor, other = place
        product = _times(operands[other], labels[other], operands[factor], labels[factor], insert)
        operands[other] = product
        del operands[factor], labels[factor]
    return insert.call(torch.einsum, f"{','.join(labels)}->{result}", *operands)


def _equation(node: Node) -> tuple[str, list[Any]]:
    arguments: Any = list(node.args)
    first = arguments[0]
    if isinstance(first, str):
        operands = arguments[1:]
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
        return first.replace(" ", ""), operands
    pairs = arguments[: len(arguments) // 2 * 2]
    terms = ["".join(_LETTERS[n] for n in numbers) for numbers in pairs[1::2]]
    result = arguments[len(pairs) :]
    end = f"->{''.join(_LETTERS[n] for n in result[0])}" if result else ""
    return ",".join(terms) + end, pairs[::2]


def _factor(labels: Sequence[str]) -> tuple[int, int] | None:
    """Return an operand, of the fewest axes, and another that has all of its axes."""
    for place in sorted(range(len(labels)), key=lambda n: len(labels[n])):
        for other, names in enumerate(labels):
            if other != place and set(labels[place]) <= set(names):
                return place, other
    return None


def _times(x: Node, names: str, factor: Node, own: str, insert: Inserter) -> Node:
    if len(set(own)) != len(own):
        raise Refusal("a diagonal is taken")
    order = tuple(own.index(name) for name in names if name in own)
    if order != tuple(range(len(order))):
        factor = insert.call(torch.permute, factor, order)
    for place, name in enumerate(names if own else ""):
        if name not in own:
            factor = insert.call(torch.unsqueeze, factor, place)
    return insert.call(torch.mul, x, factor)


# products to which something is added


def _addbmm(node: Node, insert: Inserter, _: _Near) -> Node | None:
    given = bind(node, ("input", "batch1", "batch2", "beta", "alpha"))
    made = insert.call(torch.einsum, "bij,bjk->ik", given["batch1"], given["batch2"])
    return _with_added(made, given, insert)


def _added(node: Node, insert: Inserter, near: _Near) -> Node | None:
    """Take apart what adds something to the product of weights and values."""
    is_batched = kind_of(node) == "baddbmm"
    names = ("batch1", "batch2") if is_batched else ("mat1", "mat2")
    given = bind(node, ("input", *names, "beta", "alpha"))
    a, b = (given[name] for name in names)
    if a not in near.after and b not in near.after:
        return None
    return _with_added(insert.call(torch.bmm if is_batched else torch.mm, a, b), given, insert)


def _with_added(made: Node, given: Mapping[str, Any], insert: Inserter) -> Node:
    alpha, beta = given.get("alpha", 1), given.get("beta", 1)
    if alpha != 1:
        made = insert.call(torch.mul, made, alpha)
    if isinstance(beta, int | float) and beta == 0:
        return made
    added = given["input"] if beta == 1 else insert.call(torch.mul, given["input"], beta)
    return insert.call(torch.add, added, made)


# what is divided by the sum of weights afterwards


def _divided(node: Node, insert: Inserter, near: _Near) -> Node | None:
    """Divide weights before the product: `(w @ v) / t ==> (w / t) @ v`."""
    if len(node.args) != 2 or node.kwargs or node not in near.after:
        return None
    is_product = kind_of(node) in ("mul", "multiply")
    for place in (0, 1) if is_product else (0,):
        product, total = node.args[place], node.args[1 - place]
        if not isinstance(product, Node) or not is_contraction(product):
            continue
        if not isinstance(total, Node) or total not in near.after or is_contraction(total):
            continue
        found = contraction_of(product)
        sides = [n for n, item in enumerate(found.operands) if item in near.after]
        if found.added is not None or found.alpha != 1 or not sides:
            continue
        weights = found.operands[sides[0]]
        divisor = _along(total, found.result, found.labels[sides[0]], insert)
        changed = insert.call(torch.mul if is_product else torch.div, weights, divisor)
        return _times_values(product, weights, changed, insert)
    return None


def _times_values(product: Node, weights: Node, changed: Node, insert: Inserter) -> Node | None:
    """Return a product with other weights, of the same shape and element type."""
    before, after = traced(weights), traced(changed)
    if before.dtype is not after.dtype or not is_same_shape(before.shape, after.shape):
        return None
    args, kwargs = torch.fx.map_arg(
        (product.args, product.kwargs), lambda item: changed if item is weights else item
    )
    function: Any = product.target
    return insert.call(function, *args, **kwargs)


def _along(total: Node, result: Labels, weights: Labels, insert: Inserter) -> Node:
    """Return what lies along the axes of a product so that it lies along those of weights."""
    for _ in range(len(result) - traced(total).dim()):
        total = insert.call(torch.unsqueeze, total, 0)
    only = [n for n, name in enumerate(result) if name not in weights]
    sizes = traced(total).shape
    if None in weights or any(not isinstance(sizes[n], int) or sizes[n] != 1 for n in only):
        raise Refusal("it differs within a row")
    order = (*(result.index(name) for name in weights if name in result), *only)
    if order != tuple(range(len(order))):
        total = insert.call(torch.permute, total, order)
    for _ in only:
        total = insert.call(torch.squeeze, total, -1)
    for place, name in enumerate(weights):
        if name not in result:
            total = insert.call(torch.unsqueeze, total, place)
    return total


# sums of weights


def _distributed(node: Node, insert: Inserter, near: _Near) -> Node | None:
    """Multiply weights one by one: `(a - b) @ v ==> a @ v - b @ v`."""
    for place, weights in enumerate(node.args[:2]):
        if not isinstance(weights, Node) or kind_of(weights) not in ("add", "sub"):
            continue
        parts = weights.args[:2]
        if len(weights.args) != 2 or weights.kwargs or any(x not in near.after for x in parts):
            continue
        shape = traced(weights).shape
        if not all(is_same_shape(traced(x).shape, shape) for x in parts) or len(set(parts)) != 2:
            continue
        operands = [x for x in parts if isinstance(x, Node)]
        if any(kind_of(x) in ("exp", "log_softmax", "logsumexp") for x in operands):
            continue
        function: Any = node.target
        products = [
            insert.call(function, *(x if n == place else item for n, item in enumerate(node.args)))
            for x in parts
        ]
        return insert.call(torch.sub if kind_of(weights) == "sub" else torch.add, *products)
    return None


_RULES: dict[str, Rule] = {
    "matmul": _distributed,
    "bmm": _distributed,
    "sum": _summed,
    "vecdot": _vecdot,
    "cosine_similarity": _cosine,
    "tensordot": _tensordot,
    "inner": _inner,
    "einsum": _einsum,
    "addbmm": _addbmm,
    "baddbmm": _added,
    "addmm": _added,
    "div": _divided,
    "mul": _divided,
}
