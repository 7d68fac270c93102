"""Follow logits back to the linear projection that they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lynx.backends.reference.dtypes import dtype_from_torch

from .nodes import Inserter, Node, Refusal, bind, is_same_size, name_of, tensor_of, traced
from .rearrangements import Rearrangement, rearrangement_of

_SCALINGS = {"mul": "multiply", "mul_": "multiply", "multiply": "multiply",
             "div": "divide", "div_": "divide", "truediv": "divide"}  # fmt: skip


@dataclass
class Projection:
    """Logits `steps(x @ weight.T + bias)`, whose rows are moved by `moves`.

    `x` has the features last, and `weight` is `[classes, features]` if `is_transposed`, else its
    transpose. `moves` go from the logits back to the projection; so do `steps` until they are read
    by `steps_in_order`. `nodes` are all that would no longer be needed, `node` is the product.
    """

    node: Node
    x: Node
    weight: Node
    is_transposed: bool
    axis: int
    bias: Node | None = None
    steps: list[str] = field(default_factory=list)
    moves: list[Rearrangement] = field(default_factory=list)
    classes: tuple[int, int] | None = None
    bias_is_cut: bool = False
    nodes: list[Node] = field(default_factory=list)

    @property
    def steps_in_order(self) -> list[str]:
        """The steps from the projection on."""
        return self.steps[::-1]


@dataclass
class _Walk:
    """How far back from the logits, and what was met on the way."""

    node: Node
    axis: int
    steps: list[str] = field(default_factory=list)
    moves: list[Rearrangement] = field(default_factory=list)
    classes: tuple[int, int] | None = None
    bias: Node | None = None
    bias_is_cut: bool = False
    wants_softmax: bool = False
    nodes: list[Node] = field(default_factory=list)

    def convert(self, node: Node, operand: Node) -> None:
        """Note the conversion that a node does by the way."""
        after, before = traced(node).dtype, traced(operand).dtype
        if after != before:
            self.step(f"convert {dtype_from_torch(after)}")

    def step(self, text: str) -> None:
        """Note a step."""
        if self.wants_softmax and not text.startswith("convert"):
            raise Refusal("the logarithms of a softmax are changed")
        if self.bias is not None:
            raise Refusal("a vector is added to logits that are not those of the projection")
        self.steps.append(text)


def projection_of(scores: Node, axis: int, *, of_softmax: bool = False) -> Projection:
    """Return the projection that logits come from, whose classes are at an axis.

    With `of_softmax` the scores are the logarithms of a softmax of logits, their rows moved.
    `Refusal` if there is no projection, or something lies between that is not understood.
    """
    walk = _Walk(scores, axis, wants_softmax=of_softmax)
    while True:
        found = _product(walk)
        if found is not None:
            return found
        operand = _back(walk)
        if operand is None and walk.node.op == "placeholder":
            raise Refusal("the logits come from outside of the graph")
        if operand is None:
            raise Refusal(f"the logits come from '{walk.node}', which is no linear projection")
        walk.nodes.append(walk.node)
        walk.node = operand


def _back(walk: _Walk) -> Node | None:
    """Take one step back, and return the operand to go on with."""
    node = walk.node
    move = rearrangement_of(node, walk.axis)
    if move is not None:
        walk.convert(node, move.operand)
        if move.classes is not None and walk.classes is not None:
            raise Refusal("classes are cut off twice")
        if move.classes is not None:
            walk.classes = move.classes
        if move.replay is not None:
            walk.moves.append(move)
        walk.axis = move.axis
        return move.operand
    name = name_of(node)
    if name == "log_softmax" and walk.wants_softmax:
        return _softmax(walk)
    if name in ("tanh", "tanh_"):
        return _elementwise(walk, "tanh", node.args[0])
    if name in _SCALINGS:
        return _scaling(walk, _SCALINGS[name])
    return _added_bias(walk) if name in ("add", "add_") else None


def _softmax(walk: _Walk) -> Node:
    """Pass the softmax, which the loss brings itself."""
    node = walk.node
    given = bind(node, ("input", "dim", "_stacklevel", "dtype"))
    dim = given.get("dim")
    operand = given["input"]
    if type(dim) is not int or dim % traced(node).dim() != walk.axis:
        raise Refusal(f"'{node}' is not taken over classes")
    walk.convert(node, operand)
    walk.wants_softmax = False
    assert isinstance(operand, Node)
    return operand


def _elementwise(walk: _Walk, step: str, operand: Any) -> Node:
    if not isinstance(operand, Node) or traced(operand).dtype != traced(walk.node).dtype:
        raise Refusal(f"'{walk.node}' changes the type of the logits")
    walk.step(step)
    return operand


def _scaling(walk: _Walk, kind: str) -> Node:
    node = walk.node
    if len(node.args) != 2 or node.kwargs:
        raise Refusal(f"'{node}' has other arguments than are understood")
    logits, number = node.args
    if kind == "multiply" and not isinstance(logits, Node):
        logits, number = number, logits
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise Refusal(f"'{node}' scales logits by something that is no plain number")
    return _elementwise(walk, f"{kind} {float(number)!r}", logits)


def _added_bias(walk: _Walk) -> Node:
    """Take a vector that is added to the projection for its bias."""
    node = walk.node
    if len(node.args) != 2 or node.kwargs or walk.bias is not None:
        raise Refusal(f"'{node}' has other arguments than are understood")
    a: Any
    b: Any
    a, b = node.args
    if isinstance(a, Node) and traced(a).dim() < traced(node).dim():
        a, b = b, a
    vector = tensor_of(b)
    if not isinstance(a, Node) or vector is None or traced(a).shape != traced(node).shape:
        raise Refusal(f"'{node}' adds something that is no bias")
    classes = traced(node).shape[walk.axis]
    is_vector = vector.dim() > 0 and all(size == 1 for size in vector.shape[:-1])
    if walk.axis != traced(node).dim() - 1 or not (
        is_vector and is_same_size(vector.shape[-1], classes)
    ):
        raise Refusal(f"'{node}' adds something that is no bias")
    if not traced(a).dtype == vector.dtype == traced(node).dtype:
        raise Refusal(f"'{node}' changes the type of the logits")
    walk.bias, walk.bias_is_cut = b, walk.classes is not None
    return a


def _product(walk: _Walk) -> Projection | None:
    """Return the projection if the walk has come to one."""
    rule = _PRODUCTS.get(name_of(walk.node))
    found = rule(walk.node, walk.axis) if rule is not None else None
    if found is None:
        return None
    x, weight, is_transposed, bias, axis = found
    if bias is not None and walk.bias is not None:
        raise Refusal("two vectors are added to the projection")
    if traced(weight).dim() != 2 or traced(x).dim() < 1:
        raise Refusal(f"'{walk.node}' has no single matrix of weights")
    if bias is not None and traced(bias).dim() != 1:
        raise Refusal(f"'{walk.node}' adds something that is no bias")
    return Projection(
        walk.node, x, weight, is_transposed, axis,
        bias=bias if bias is not None else walk.bias,
        steps=walk.steps,
        moves=walk.moves,
        classes=walk.classes,
        bias_is_cut=bias is not None or walk.bias_is_cut,
        nodes=[*walk.nodes, walk.node],
    )  # fmt: skip


_Found = tuple[Node, Node, bool, Node | None, int]
"""`x`, weight, whether the weight is `[classes, features]`, bias, class axis of the product."""


def _linear(node: Node, axis: int) -> _Found | None:
    given = bind(node, ("input", "weight", "bias"))
    if axis != traced(node).dim() - 1:
        raise Refusal("the classes are not what the projection is onto")
    return given["input"], given["weight"], True, given.get("bias"), axis


def _matmul(node: Node, axis: int) -> _Found | None:
    given = bind(node, ("input", "mat2" if name_of(node) == "mm" else "other"))
    a, b = list(given.values())
    if axis != traced(node).dim() - 1 or traced(b).dim() != 2:
        raise Refusal("the classes are not what the projection is onto")
    return a, b, False, None, axis


def _addmm(node: Node, axis: int) -> _Found | None:
    given = bind(node, ("input", "mat1", "mat2", "beta", "alpha"))
    if axis != 1 or given.get("beta", 1) != 1 or given.get("alpha", 1) != 1:
        raise Refusal("the classes are not what the projection is onto")
    return given["mat1"], given["mat2"], False, given["input"], axis


def _einsum(node: Node, axis: int) -> _Found | None:
    """Read an equation such as `btd,vd->btv`."""
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    inputs, arrow, result = str(equation).replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(operands) != 2 or len(terms) != 2 or "." in inputs + result:
        raise Refusal(f"'{node}' is no projection that is understood")
    (x, weight), (rows, matrix) = operands, terms
    if len(rows) < len(matrix) or result[axis] not in matrix:
        (weight, x), (matrix, rows) = (x, weight), (rows, matrix)
    kept = rows[:-1]
    label, feature = result[axis], rows[-1]
    is_product = result == kept + label and len(set(rows + label)) == len(rows) + 1
    if not is_product or sorted(matrix) != sorted(label + feature):
        raise Refusal(f"'{node}' is no projection that is understood")
    assert isinstance(x, Node)
    assert isinstance(weight, Node)
    return x, weight, matrix == label + feature, None, axis


_PRODUCTS: dict[str, Callable[[Node, int], _Found | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "addmm": _addmm,
    "einsum": _einsum,
}


def rows_of(projection: Projection, axis: int, insert: Inserter) -> Node:
    """Add what gives `x` with its rows where those of the logits are, and the features last.

    `axis` is that of the classes in the logits.
    """
    x = projection.x
    width: Any = traced(x).shape[-1]
    if isinstance(width, torch.SymInt):
        width = insert.call("size", x, -1)
    for move in reversed(projection.moves):
        assert move.replay is not None
        x = move.replay(insert, x, width)
    return insert.call(torch.movedim, x, axis, -1) if axis >= 0 else x


def weight_of(projection: Projection, insert: Inserter) -> tuple[Node, Node | None]:
    """Add what gives the weight as `[classes, features]`, and the bias, of the classes kept."""
    weight, bias = projection.weight, projection.bias
    if not projection.is_transposed:
        weight = insert.call(torch.t, weight)
    if bias is not None and traced(bias).dim() > 1:
        bias = insert.call("reshape", bias, -1)
    if projection.classes is not None:
        kept = slice(*projection.classes)
        weight = insert.call(operator.getitem, weight, kept)
        if bias is not None and projection.bias_is_cut:
            bias = insert.call(operator.getitem, bias, kept)
    return weight, bias
