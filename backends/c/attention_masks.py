"""Print which keys a block of queries sees, as far as affine comparisons tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from lynx.ir.dims import Dim
from lynx.passes.attention.masks import Affine, AllOf, AtMostZero, Literal, Region, region_of

from .attention_rows import Rows

SIGNATURE = (
    "INLINE void OWN(bounds)(const struct attention *x, i64 b, i64 h, i64 q0, i64 q1, i64 *low,\n"
    "                        i64 *high, i64 *inside_low, i64 *inside_high) {"
)


@dataclass
class BoundsPrinter:
    """Prints two ranges of keys for queries from `q0` to `q1`, for each region.

    Outside of the first, no pair is in the region; in the second, all pairs are. They are variables
    `low`, `high`, `inside_low` and `inside_high` with the number of the region behind.
    """

    rows: Rows
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def print(self, regions: list[Region]) -> str:
        """Return the function that finds the ranges in which all regions hold."""
        at = self._both(AllOf(tuple(regions)))
        results = [
            f"*{name} = {name}_{at};" for name in ("low", "high", "inside_low", "inside_high")
        ]
        body = [*self.rows.row, *self.lines, *results]
        return "\n".join([SIGNATURE, *(f"  {line}" for line in body), "}"])

    def _region(self, region: Region) -> int:
        if isinstance(region, AtMostZero):
            return self._half_plane(region.affine)
        return self._both(region) if isinstance(region, AllOf) else self._either(region.parts)

    def _new(self, low: str, high: str, inside_low: str, inside_high: str) -> int:
        at = self.count
        self.count += 1
        values = (
            ("low", low),
            ("high", high),
            ("inside_low", inside_low),
            ("inside_high", inside_high),
        )
        self.lines += [f"const i64 {name}_{at} = {text};" for name, text in values]
        return at

    def _both(self, region: AllOf) -> int:
        at = self._new("-FAR", "FAR", "-FAR", "FAR")
        for part in region.parts:
            other = self._region(part)
            at = self._new(
                *(
                    f"lynx_{which}({name}_{at}, {name}_{other})"
                    for which, name in (
                        ("max", "low"),
                        ("min", "high"),
                        ("max", "inside_low"),
                        ("min", "inside_high"),
                    )
                )
            )
        return at

    def _either(self, parts: tuple[Region, ...]) -> int:
        at = self._region(parts[0])
        for part in parts[1:]:
            other = self._region(part)
            larger = (
                f"inside_high_{at} - inside_low_{at} >= inside_high_{other} - inside_low_{other}"
            )
            at = self._new(
                f"lynx_min(low_{at}, low_{other})",
                f"lynx_max(high_{at}, high_{other})",
                f"{larger} ? inside_low_{at} : inside_low_{other}",
                f"{larger} ? inside_high_{at} : inside_high_{other}",
            )
        return at

    def _half_plane(self, affine: Affine) -> int:
        weight, slope = affine.weight("k"), affine.weight("q")
        if not isinstance(weight, int) or not isinstance(slope, int):
            return self._new("-FAR", "FAR", "FAR", "-FAR")
        least, most = ("q0", "(q1 - 1)") if slope >= 0 else ("(q1 - 1)", "q0")
        rest = self._rest(affine)
        # weight * k <= -(rest + slope * q), for some query and for all of them.
        some, every = (f"-({rest} + {slope} * {q})" for q in (least, most))
        if weight > 0:
            some, every = (f"lynx_floor_div({text}, {weight}) + 1" for text in (some, every))
            return self._new("-FAR", some, "-FAR", every)
        if weight < 0:
            some, every = (f"-lynx_floor_div({text}, {-weight})" for text in (some, every))
            return self._new(some, "FAR", every, "FAR")
        some, every = (f"({text}) >= 0" for text in (some, every))
        return self._new(
            f"{some} ? -FAR : FAR", f"{some} ? FAR : -FAR",
            f"{every} ? -FAR : FAR", f"{every} ? FAR : -FAR",
        )  # fmt: skip

    def _rest(self, affine: Affine) -> str:
        arguments = self.rows.arguments
        parts = [
            f"{axis} * {arguments.dim(weight)}"
            for axis, weight in affine.axes
            if axis in ("b", "h")
        ]
        parts += [f"{factor} * (i64){self.rows.text(of)}" for of, factor in affine.scalars]
        return " + ".join([*parts, arguments.dim(affine.offset)])


def regions_of(literals: tuple[Literal, ...]) -> tuple[list[Region], list[Literal], list[Literal]]:
    """Return the regions of the literals that have one, these, and the other literals."""
    regions: list[Region] = []
    known: list[Literal] = []
    other: list[Literal] = []
    for literal in literals:
        region = region_of(literal)
        if region is None or not _has_whole_slopes(region):
            other.append(literal)
        else:
            regions.append(region)
            known.append(literal)
    return regions, known, other


def _has_whole_slopes(region: Region) -> bool:
    if isinstance(region, AtMostZero):
        slopes: list[Dim] = [region.affine.weight(axis) for axis in ("q", "k")]
        return all(isinstance(slope, int) for slope in slopes)
    return all(_has_whole_slopes(part) for part in region.parts)
