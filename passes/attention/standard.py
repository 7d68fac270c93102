"""The form of attention that libraries compute: scaled products, perhaps capped, within a band."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lynx.ir.dims import Dim, minimum, simplify
from lynx.ir.kernel import Apply, Check, Convert, Kernel, Load, Scalar

from .masks import Affine, AllOf, AtMostZero, Mask, Region, mask_of, number_of, region_of
from .score import DOT, score_of
from .simplify import simplified

_NO_SCORE = -1e29
"""What is filled in below this hides from a query that sees anything at all."""


@dataclass(frozen=True)
class StandardForm:
    """Scores are `dot * scale`, then `softcap * tanh(scores / softcap)` unless that is 0.

    A query `q` sees the keys `k` with `k - q <= upper` and `q - k <= lower`; None is no limit.
    """

    scale: float = 1.0
    softcap: float = 0.0
    upper: Dim | None = None
    lower: Dim | None = None


def standard_form(kernel: Kernel) -> StandardForm | str:
    """Return a score kernel as a standard form, or why it is none."""
    if any(isinstance(one, Check) for one in kernel.body):
        return "the score function checks something"
    mask = mask_of(kernel)
    limits = _limits(mask)
    if isinstance(limits, str):
        return limits
    known = {literal.scalar: literal.wanted for literal in mask.literals}
    score = score_of(kernel)
    capped = _capped(simplified([score], known)(score))
    if capped is None:
        return "the score is more than the scaled product"
    scale, softcap = capped
    return StandardForm(scale, softcap, *limits)


def _limits(mask: Mask) -> tuple[Dim | None, Dim | None] | str:
    if mask.terms:
        return "the mask is data"
    if mask.literals and mask.limit > _NO_SCORE:
        return f"hidden scores are {mask.limit}, which may not be below all others"
    upper: Dim | None = None
    lower: Dim | None = None
    for literal in mask.literals:
        region = region_of(literal)
        planes = None if region is None else _planes(region)
        if planes is None:
            return "the mask is no band"
        for plane in planes:
            slopes = (plane.weight("k"), plane.weight("q"))
            if slopes not in ((1, -1), (-1, 1)) or len(plane.axes) != 2 or plane.scalars:
                return "the mask is no band"
            bound = simplify(-plane.offset)
            if slopes == (1, -1):
                upper = bound if upper is None else minimum(upper, bound)
            else:
                lower = bound if lower is None else minimum(lower, bound)
    return upper, lower


def _planes(region: Region) -> list[Affine] | None:
    """Return the half-planes whose common part a region is, None if it is no such thing."""
    found: list[Affine] = []
    pending = [region]
    while pending:
        part = pending.pop()
        match part:
            case AtMostZero():
                found.append(part.affine)
            case AllOf():
                pending += part.parts
            case _:
                return None
    return found


def _capped(score: Scalar) -> tuple[float, float] | None:
    """Return scale and softcap of a score, None if it is made otherwise."""
    scale = _scaled(score)
    if scale is not None:
        return scale, 0.0
    found = _factor(score)
    if found is None:
        return None
    softcap, inner = found
    source = inner.instruction
    if not isinstance(source, Apply) or source.function != "tanh":
        return None
    scale = _scaled(source.arguments[0])
    if scale is None or not 0 < softcap < math.inf:
        return None
    return scale * softcap, softcap


def _scaled(x: Scalar) -> float | None:
    """Return by which number the product is multiplied to give a scalar."""
    scale = 1.0
    while True:
        source = x.instruction
        if isinstance(source, Load):
            return scale if source.buffer.name == DOT else None
        if isinstance(source, Convert) and not source.dtype.is_low_precision:
            x = source.x
            continue
        found = _factor(x)
        if found is None:
            return None
        scale, x = scale * found[0], found[1]


def _factor(x: Scalar) -> tuple[float, Scalar] | None:
    """Return a number and the scalar that is multiplied by it."""
    source = x.instruction
    if not isinstance(source, Apply) or source.function not in ("mul", "div"):
        return None
    for at, value in enumerate(map(number_of, source.arguments)):
        if value is None or (source.function == "div" and at == 0):
            continue
        if value != 0 and math.isfinite(value):
            return (value if source.function == "mul" else 1 / value), source.arguments[1 - at]
    return None
