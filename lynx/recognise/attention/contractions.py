"""Products of two tensors that sum over an axis, however they are written."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx.recognise.nodes import Node, Refusal, is_same_size, tensor_of

from .vocabulary import CONTRACTIONS, kind_of

Labels = tuple[str | None, ...]
"""A name for each dimension; None where it has size 1 and stands for any place of the result's."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products of two operands.

    Dimensions of one label run together; labels that the result lacks are summed over. The product
    is multiplied by `alpha`, and `beta` times `added` is added to it.
    """

    node: Node
    operands: tuple[Node, Node]
    labels: tuple[Labels, Labels]
    result: Labels
    alpha: Any = 1
    added: Node | None = None
    beta: Any = 0

    @property
    def summed(self) -> list[str]:
        """The labels that are summed over, in the order of the second operand."""
        return [name for name in self.labels[1] if name is not None and name not in self.result]


def is_contraction(node: Node) -> bool:
    """Whether a node multiplies tensors and sums."""
    return kind_of(node) in CONTRACTIONS


def is_product(node: Node) -> bool:
    """Whether a node contracts two tensors that a model computes, or might."""
    if kind_of(node) != "linear":
        return is_contraction(node)
    weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    return isinstance(tensor_of(weight), torch.Tensor) and not _is_parameter(weight)


def _is_parameter(node: Any) -> bool:
    value = tensor_of(node)
    return isinstance(value, torch.nn.Parameter) or (
        isinstance(node, Node) and node.op in ("placeholder", "get_attr")
    )


def contraction_of(node: Node) -> Contraction:
    """Describe a contraction of two tensors; `Refusal` if it is none that is understood."""
    kind = kind_of(node)
    if kind == "einsum":
        return _einsum(node)
    if kind in ("baddbmm", "addmm"):
        return _added(node)
    if kind == "linear":
        return _linear(node)
    given = _two(node)
    if kind in ("matmul", "bmm", "mm", "mv"):
        return Contraction(node, given, *_matmul(*given))
    raise Refusal(f"the product '{node}' is written in a way that is not understood")


def _two(node: Node) -> tuple[Node, Node]:
    names = (("input", "self", "mat"), ("other", "mat2", "vec", "tensor2"))
    found: list[Any] = list(node.args[:2])
    for alternatives in names[len(found) :]:
        found += [node.kwargs[name] for name in alternatives if name in node.kwargs][:1]
    if len(found) != 2 or not all(tensor_of(item) is not None for item in found):
        raise Refusal(f"the product '{node}' is not one of two ordinary tensors")
    if len(node.args) > 2 or "out" in node.kwargs or "out_dtype" in node.kwargs:
        raise Refusal(f"the product '{node}' has other arguments than are understood")
    a, b = found
    return a, b


def _rank(node: Node) -> int:
    value = tensor_of(node)
    assert value is not None
    return value.dim()


def _matmul(a: Node, b: Node) -> tuple[tuple[Labels, Labels], Labels]:
    first, second = _rank(a), _rank(b)
    batch = max(first, second) - 2 if max(first, second) > 2 else 0
    names = [f"b{n}" for n in range(batch)]
    rows = ["m"] if first > 1 else []
    columns = ["n"] if second > 1 else []
    of_a = [*_outer(a, names, first - 2), *rows, "k"]
    of_b = [*_outer(b, names, second - 2), *(["k", *columns] if second > 1 else ["k"])]
    return (_labelled(a, b, of_a, of_b)), (*names, *rows, *columns)


def _outer(node: Node, names: list[str], count: int) -> list[str]:
    return names[len(names) - count :] if count > 0 else []


def _labelled(a: Node, b: Node, of_a: Sequence[str], of_b: Sequence[str]) -> tuple[Labels, Labels]:
    """Leave out labels of dimensions of size 1 that are repeated along the other operand's."""
    shapes = [tensor_of(node).shape for node in (a, b)]  # type: ignore[union-attr]
    sizes: list[dict[str, Any]] = [
        dict(zip(names, shape, strict=True))
        for names, shape in zip((of_a, of_b), shapes, strict=True)
    ]
    found: list[Labels] = []
    for own, other, names in ((sizes[0], sizes[1], of_a), (sizes[1], sizes[0], of_b)):
        labels: list[str | None] = []
        for name in names:
            size = own[name]
            repeats = name in other and _is_one(size) and not _is_one(other[name])
            is_repeated = name in other and _is_one(other[name])
            if name in other and not (repeats or is_repeated or is_same_size(size, other[name])):
                raise Refusal(f"sizes {size} and {other[name]} are equal by chance")
            labels.append(None if repeats else name)
        found.append(tuple(labels))
    return found[0], found[1]


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _added(node: Node) -> Contraction:
    names = ("input", "batch1", "batch2") if kind_of(node) == "baddbmm" else (
        "input", "mat1", "mat2")  # fmt: skip
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if not set(given) <= {*names, "beta", "alpha"} or len(node.args) > 3:
        raise Refusal(f"the product '{node}' has other arguments than are understood")
    added, a, b = (given[name] for name in names)
    if any(tensor_of(item) is None for item in (added, a, b)):
        raise Refusal(f"the product '{node}' is not one of ordinary tensors")
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    if isinstance(beta, int | float) and beta == 0:
        added = None
    return Contraction(node, (a, b), *_matmul(a, b), alpha, added, beta)


def _linear(node: Node) -> Contraction:
    given: dict[str, Any] = {
        **dict(zip(("input", "weight", "bias"), node.args, strict=False)),
        **node.kwargs,
    }
    x, weight = given["input"], given["weight"]
    if given.get("bias") is not None or tensor_of(x) is None or tensor_of(weight) is None:
        raise Refusal(f"the product '{node}' adds something")
    outer = [f"b{n}" for n in range(_rank(x) - 1)]
    if _rank(weight) != 2:
        raise Refusal(f"the product '{node}' is not one of matrices")
    return Contraction(node, (x, weight), ((*outer, "k"), ("n", "k")), (*outer, "n"))


def _einsum(node: Node) -> Contraction:
    arguments: Any = node.args
    equation, *operands = arguments
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or node.kwargs:
        raise Refusal(f"the product '{node}' is not one of two tensors")
    a, b = operands
    if tensor_of(a) is None or tensor_of(b) is None:
        raise Refusal(f"the product '{node}' is not one of ordinary tensors")
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != 2:
        raise Refusal(f"'{equation}' is not understood")
    spelled = [_spelled(term, _rank(x)) for term, x in zip(terms, (a, b), strict=True)]
    most = max((count for _, count in spelled), default=0)
    of_a, of_b = (_filled(names, count, most) for names, count in spelled)
    result = _result(right, arrow, most, of_a, of_b)
    for names in (of_a, of_b):
        if len(set(names)) != len(names):
            raise Refusal(f"'{equation}' takes a diagonal")
        other = of_b if names is of_a else of_a
        if any(name not in result and name not in other for name in names):
            raise Refusal(f"'{equation}' sums one operand before the product")
    return Contraction(node, (a, b), _labelled(a, b, of_a, of_b), result)


def _spelled(term: str, rank: int) -> tuple[list[str], int]:
    """Return the letters of an operand, with "..." as one, and how many dimensions that is."""
    before, dots, after = term.partition("...")
    letters = [*before, *(["..."] if dots else []), *after]
    if any(name != "..." and name not in string.ascii_letters for name in letters):
        raise Refusal(f"'{term}' is not understood")
    return letters, rank - len(before) - len(after) if dots else 0


def _filled(letters: list[str], count: int, most: int) -> tuple[str, ...]:
    outer = [f".{n}" for n in range(most - count, most)]
    return tuple(name for item in letters for name in (outer if item == "..." else [item]))


def _result(
    right: str, arrow: str, most: int, of_a: Sequence[str], of_b: Sequence[str]
) -> tuple[str, ...]:
    if arrow:
        before, dots, after = right.partition("...")
        return _filled([*before, *(["..."] if dots else []), *after], most, most)
    names = [*of_a, *of_b]
    once = sorted(n for n in dict.fromkeys(names) if names.count(n) == 1 and n[0] != ".")
    return (*(f".{n}" for n in range(most)), *once)
