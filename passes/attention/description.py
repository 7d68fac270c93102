"""Attention in words: what its score function does, derived from the kernel that it becomes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from lynx.ir.dims import Dim, format_dim
from lynx.ir.errors import LynxError
from lynx.ir.kernel import Apply, Convert, Kernel, Load, Position, Scalar
from lynx.ir.ops.attention import Attending
from lynx.ir.ops.fusion import Region

from .conditions import Both, axes_text, condition_of, condition_text, loads_of, words_of
from .masks import HIDING, Literal, depends_on_dot, hidden_by, literals_of, number_of, unconverted
from .score import row_major, score_kernel, score_of

ADDITIVE = "additive bias"
"""What is said of operands that are added, which may hide pairs as masks do."""

_LARGE = -HIDING
_SUMS = ("add", "sub")
_PRODUCTS = ("mul", "div")


@dataclass(frozen=True, slots=True)
class ScoreDescription:
    """What is done to the products of queries and keys, in words.

    `masks` must all let a pair through; `biases` are added. The products are multiplied by `scale`,
    a number or words, empty for 1, and `softcap` bounds them. `steps` is all else that is done.
    """

    masks: tuple[str, ...] = ()
    scale: str = ""
    softcap: str = ""
    biases: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return all of it, masks first."""
        masks = [" and ".join(self.masks)] if self.masks else []
        if not self.masks and not any(text.startswith(ADDITIVE) for text in self.biases):
            masks = ["no mask"]
        scale = [f"scale {self.scale}"] if self.scale else []
        softcap = [f"softcap {self.softcap}"] if self.softcap else []
        return [*masks, *scale, *softcap, *self.biases, *self.steps]


def describe_score(region: Region | None) -> ScoreDescription:
    """Return what a score function does; None does nothing."""
    if region is None:
        return ScoreDescription()
    return _described(region)


@functools.lru_cache(maxsize=256)
def _described(region: Region) -> ScoreDescription:
    strides = [row_major(parameter.shape) for parameter in region.parameters[1:]]
    try:
        kernel = score_kernel(region, strides)
    except LynxError as error:
        return ScoreDescription(steps=(f"a score function without a kernel ({error.message})",))
    return _Walk().describe(kernel)


def describe_attention(op: Attending) -> list[str]:
    """Return what an attention or its gradients do, in words: masks, scale, groups and more."""
    words = describe_score(op.scoring()).words()
    words += group_words(op.group)
    words += ["sink"] if op.sink is not None else []
    keep_scale: float = getattr(op, "keep_scale", 1.0)
    if op.keep is not None:
        words.append(f"dropout {1 - 1 / keep_scale:.4g}" if keep_scale > 1 else "masked weights")
    depth, value_depth = op.q.shape[3], op.v.shape[3]
    depths = dict.fromkeys((format_dim(depth), format_dim(value_depth)))
    return [*words, f"depth {' and '.join(depths)}"]


def group_words(group: Dim | None) -> list[str]:
    """Return how many heads of queries share a head of keys, nothing if it is one."""
    if group is None:
        return ["heads share keys"]
    return [] if group == 1 else [f"groups of {format_dim(group)}"]


@dataclass
class _Walk:
    """Goes from the score back to the product, and keeps what it passes.

    `factors` are numbers and `tanh`, the last step first.
    """

    literals: list[Literal] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    factors: list[float | str] = field(default_factory=list)
    biases: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    bounds: dict[str, float] = field(default_factory=dict)

    def describe(self, kernel: Kernel) -> ScoreDescription:
        """Return what a score kernel does."""
        scalar: Scalar | None = score_of(kernel)
        while scalar is not None:
            scalar = self._next(scalar)
        self._end_bounds()
        conditions = [condition_of(literal) for literal in dict.fromkeys(self.literals)]
        masks = words_of(Both(tuple(c for c in conditions if c is not None)))
        scale, softcap = self._scale()
        return ScoreDescription(
            tuple(dict.fromkeys((*masks, *self.texts))), scale, softcap,
            tuple(dict.fromkeys(reversed(self.biases))), tuple(reversed(self.steps)),
        )  # fmt: skip

    def _next(self, scalar: Scalar) -> Scalar | None:
        source = scalar.instruction
        if isinstance(source, Convert):
            return source.x
        if isinstance(source, Load):
            return None
        if not isinstance(source, Apply) or not depends_on_dot(scalar):
            self.steps.append("scores that no product has an influence on")
            return None
        inside = [x for x in source.arguments if depends_on_dot(x)]
        others = [x for x in source.arguments if x not in inside]
        if source.function == "where":
            return self._chosen(*source.arguments)
        if source.function not in ("maximum", "minimum", "fmax", "fmin"):
            self._end_bounds()
        if len(inside) != 1:
            self.steps.append("a function of the score")
            return None
        return self._one_sided(source, inside[0], others)

    def _one_sided(self, source: Apply, inside: Scalar, others: list[Scalar]) -> Scalar | None:
        name = source.function
        if name in _SUMS:
            negative = name == "sub"
            if negative and source.arguments[1] is inside:
                self.factors.append(-1.0)
                negative = False
            self._add(others[0], -1 if negative else 1)
        elif name == "neg":
            self.factors.append(-1.0)
        elif name == "mul" or (name == "div" and source.arguments[0] is inside):
            self._multiply(others[0], is_divided=name == "div")
        elif name == "tanh":
            self.factors.append("tanh")
        elif name in ("maximum", "minimum", "fmax", "fmin"):
            self._bound(name, others[0])
        else:
            self.steps.append(f"{name} of scores")
        return inside

    def _chosen(self, condition: Scalar, chosen: Scalar, other: Scalar) -> Scalar | None:
        """Look behind a choice between scores and what has no product in it."""
        if depends_on_dot(chosen) and depends_on_dot(other):
            self.steps.append("a choice between functions of the score")
            return None
        wanted = depends_on_dot(chosen)
        inside, fill = (chosen, other) if wanted else (other, chosen)
        if not depends_on_dot(inside):
            self.steps.append("a choice by the score")
            return None
        value = number_of(fill)
        bound = _bound_of(condition, inside, fill, wanted=wanted)
        if bound:
            self._bound(bound, fill)
            return inside
        self._end_bounds()
        literals = list(literals_of(condition, wanted=wanted))
        if _is_score_free(fill) and (value is None or value <= HIDING):
            self.literals += literals
        else:
            found = [condition_of(literal) for literal in literals]
            words = " and ".join(words_of(Both(tuple(c for c in found if c is not None))))
            text = "a bias" if value is None else f"{value:g}"
            self.steps.append(f"{text} in place of scores outside of: {words}")
        return inside

    def _add(self, term: Scalar, sign: int) -> None:
        pending = [(term, sign)]
        while pending:
            item, sign = pending.pop()
            source = unconverted(item).instruction
            if isinstance(source, Apply) and source.function in _SUMS and not is_distance(item):
                left, right = source.arguments
                if number_of(left) is None and number_of(right) is None:
                    pending += [(right, -sign if source.function == "sub" else sign), (left, sign)]
                    continue
            self._add_one(item, sign)

    def _add_one(self, term: Scalar, sign: int) -> None:
        if number_of(term) is not None:
            return
        hidden = hidden_by(term, sign)
        if hidden is not None:
            self.literals += hidden[1]
        elif _is_hiding(term):
            self.texts.append(condition_text(term))
        else:
            self.biases.append(_bias_text(term))

    def _multiply(self, factor: Scalar, *, is_divided: bool) -> None:
        value = number_of(factor)
        if value is None:
            self.factors.append(f"by an operand{axes_text(factor.axes)}")
        elif value != 0:
            self.factors.append(1 / value if is_divided else value)
        else:
            self.steps.append("divided by 0" if is_divided else "multiplied by 0")

    def _bound(self, name: str, bound: Scalar) -> None:
        value = number_of(bound)
        kind = "at least" if name in ("maximum", "fmax") else "at most"
        if value is None or kind in self.bounds:
            self.steps.append(f"{kind} an operand{axes_text(bound.axes)}")
        else:
            self.bounds[kind] = value

    def _end_bounds(self) -> None:
        if self.bounds:
            texts = [f"{k} {v:g}" for k, v in sorted(self.bounds.items()) if abs(v) < _LARGE]
            self.steps += ["scores " + " and ".join(texts)] if texts else []
            self.bounds = {}

    def _scale(self) -> tuple[str, str]:
        scale, softcap = 1.0, ""
        words: list[str] = []
        forward = self.factors[::-1]
        place = 0
        while place < len(forward):
            factor = forward[place]
            place += 1
            if factor == "tanh":
                after = forward[place] if place < len(forward) else 1.0
                cap = after if isinstance(after, float) else 1.0
                place += isinstance(after, float)
                scale *= cap
                softcap = f"{cap:.6g}"
            elif isinstance(factor, float):
                scale *= factor
            else:
                words.append(factor)
        number = [] if abs(scale - 1) < 1e-12 else [f"{scale:.6g}"]
        return " and ".join([*number, *words]), softcap


def _bound_of(condition: Scalar, x: Scalar, fill: Scalar, *, wanted: bool) -> str:
    """Return which of maximum and minimum chooses a score or a number, empty if none does.

    The score is chosen where the condition is as `wanted`.
    """
    source = condition.instruction
    if not isinstance(source, Apply) or source.function not in ("lt", "le", "gt", "ge"):
        return ""
    if set(source.arguments) != {x, fill}:
        return ""
    is_less = source.function in ("lt", "le")
    keeps_less = (is_less == (source.arguments[0] is x)) == wanted
    return "minimum" if keeps_less else "maximum"


def _is_score_free(fill: Scalar) -> bool:
    return not {"q", "k"} & set(fill.axes)


def _is_hiding(term: Scalar) -> bool:
    """Whether a term is a truth value, kept as a number, times so much that it hides."""
    source = unconverted(term).instruction
    if not isinstance(source, Apply) or "k" not in term.axes:
        return False
    if source.function == "log":
        behind = unconverted(source.arguments[0]).dtype
        return not behind.is_floating
    factors = [number_of(x) for x in source.arguments]
    return source.function in _PRODUCTS and any(f is not None and abs(f) >= _LARGE for f in factors)


def _bias_text(term: Scalar) -> str:
    if is_distance(term):
        varies = "h" in term.axes or any(True for _ in loads_of(term))
        return "ALiBi" if varies else "bias by distance"
    source = unconverted(term).instruction
    if isinstance(source, Apply) and source.function == "log":
        return f"weights by an operand{axes_text(term.axes)}"
    loads = list(loads_of(term))
    if any(load.index.scalars for load in loads):
        by_data = any(True for load in loads for x in load.index.scalars for _ in loads_of(x))
        kind = "table, by positions of the data" if by_data else "relative-position table"
        return f"{kind}{axes_text(term.axes)}"
    if not loads:
        return f"bias of positions{axes_text(term.axes)}"
    return f"{ADDITIVE}{axes_text(term.axes)}"


def is_distance(x: Scalar) -> bool:
    """Whether a number is linear in the distance of query and key, or in the place of the key."""
    source = unconverted(x).instruction
    if isinstance(source, Position):
        return any(of in ("q", "k") for of in (term.of for term in source.index.terms))
    if not isinstance(source, Apply):
        return False
    parts = source.arguments
    if source.function in ("neg", "abs"):
        return is_distance(parts[0])
    if source.function in _SUMS:
        return any(map(is_distance, parts)) and all(is_distance(p) or _is_row(p) for p in parts)
    if source.function in ("maximum", "minimum"):
        return any(map(is_distance, parts)) and any(number_of(p) is not None for p in parts)
    if source.function == "mul":
        return any(is_distance(p) and _is_row(q) for p, q in (parts, parts[::-1]))
    return source.function == "div" and is_distance(parts[0]) and _is_row(parts[1])


def _is_row(x: Scalar) -> bool:
    return not {"q", "k"} & set(x.axes)
