"""Print which keys a block of queries sees, and which queries see a block of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lynx.ir.dims import Dim
from lynx.ir.kernel import Scalar
from lynx.passes.attention.masks import Affine, AllOf, AtMostZero, Literal, Region, region_of

from .attention_writer import AttentionWriter

_FAR = 1 << 40
"""More than there are positions."""

_NAMES = ("low", "high", "inside_low", "inside_high")


@dataclass(frozen=True)
class Span:
    """Texts of two ranges: outside of the first no pair is visible, in the second all pairs are."""

    low: str = f"(nil - {_FAR})"
    high: str = f"(nil + {_FAR})"
    inside_low: str = f"(nil - {_FAR})"
    inside_high: str = f"(nil + {_FAR})"


@dataclass
class BoundsPrinter:
    """Prints the ranges along one axis for a block of positions along the other.

    The block is from `fixed` up to `fixed_end`. All is computed in `i64`.
    """

    writer: AttentionWriter
    swept: str
    count: int = 0

    @property
    def _fixed(self) -> str:
        return "q" if self.swept == "k" else "k"

    def print(self, regions: list[Region]) -> Span:
        """Print the ranges in which all regions hold; return their names."""
        self.writer.compute(scalars_of(regions))
        return self._both(tuple(regions))

    def _named(self, span: Span) -> Span:
        names = []
        for kind in _NAMES:
            name = self.writer.names.fresh(f"{kind}_{self.count}")
            self.writer.emit(f"{name} = {getattr(span, kind)}")
            names.append(name)
        self.count += 1
        return Span(*names)

    def _region(self, region: Region) -> Span:
        if isinstance(region, AtMostZero):
            return self._named(self._half_plane(region.affine))
        if isinstance(region, AllOf):
            return self._both(region.parts)
        return self._either(region.parts)

    def _both(self, parts: tuple[Region, ...]) -> Span:
        first, *others = map(self._region, parts)
        for other in others:
            first = self._named(
                Span(
                    f"tl.maximum({first.low}, {other.low})",
                    f"tl.minimum({first.high}, {other.high})",
                    f"tl.maximum({first.inside_low}, {other.inside_low})",
                    f"tl.minimum({first.inside_high}, {other.inside_high})",
                )
            )
        return first

    def _either(self, parts: tuple[Region, ...]) -> Span:
        first, *others = map(self._region, parts)
        for other in others:
            larger = (
                f"{first.inside_high} - {first.inside_low} >= "
                f"{other.inside_high} - {other.inside_low}"
            )
            first = self._named(
                Span(
                    f"tl.minimum({first.low}, {other.low})",
                    f"tl.maximum({first.high}, {other.high})",
                    f"tl.where({larger}, {first.inside_low}, {other.inside_low})",
                    f"tl.where({larger}, {first.inside_high}, {other.inside_high})",
                )
            )
        return first

    def _half_plane(self, affine: Affine) -> Span:
        weight, slope = affine.weight(self.swept), affine.weight(self._fixed)
        assert isinstance(weight, int), affine
        assert isinstance(slope, int), affine
        begin, last = "fixed", "(fixed_end - 1)"
        least, most = (begin, last) if slope >= 0 else (last, begin)
        rest = self._rest(affine)
        # weight * position <= -(rest + slope * fixed), for some of the block and for all of it.
        some, every = (f"(nil - ({rest} + {at} * {slope}))" for at in (least, most))
        if weight > 0:
            some, every = (f"{self._divided(text, weight)} + 1" for text in (some, every))
            return Span(high=some, inside_high=every)
        if weight < 0:
            some, every = (f"nil - {self._divided(text, -weight)}" for text in (some, every))
            return Span(low=some, inside_low=every)
        low, high = f"nil - {_FAR}", f"nil + {_FAR}"
        return Span(
            f"tl.where({some} >= 0, {low}, {high})",
            f"tl.where({some} >= 0, {high}, {low})",
            f"tl.where({every} >= 0, {low}, {high})",
            f"tl.where({every} >= 0, {high}, {low})",
        )

    def _divided(self, text: str, by: int) -> str:
        return text if by == 1 else f"floor_div_integer({text}, nil + {by})"

    def _rest(self, affine: Affine) -> str:
        writer = self.writer
        parts = [
            f"{writer.axis_names[axis]} * {writer.dim(weight)}"
            for axis, weight in affine.axes
            if axis in ("b", "h")
        ]
        parts += [f"{writer.use(of)}.to(tl.int64) * {factor}" for of, factor in affine.scalars]
        return " + ".join(["nil", *parts, writer.dim(affine.offset)])


def scalars_of(regions: list[Region]) -> list[Scalar]:
    """Return the scalars that the borders of regions depend on."""
    found: dict[Scalar, None] = {}
    for affine in _planes(regions):
        found.update((scalar, None) for scalar, _ in affine.scalars)
    return list(found)


def _planes(regions: list[Region]) -> Iterator[Affine]:
    pending = list(regions)
    while pending:
        region = pending.pop()
        if isinstance(region, AtMostZero):
            yield region.affine
        else:
            pending += region.parts


def regions_of(literals: tuple[Literal, ...]) -> tuple[list[Region], list[Literal]]:
    """Return the regions of the literals that have one, and these literals."""
    regions: list[Region] = []
    known: list[Literal] = []
    for literal in literals:
        region = region_of(literal)
        if region is not None and all(map(_has_whole_slopes, _planes([region]))):
            regions.append(region)
            known.append(literal)
    return regions, known


def _has_whole_slopes(affine: Affine) -> bool:
    slopes: list[Dim] = [affine.weight(axis) for axis in ("q", "k")]
    return all(isinstance(slope, int) for slope in slopes)


Body = Callable[[bool], None]
"""Prints what is done with a tile that begins at `start`; true if all of it is visible."""


@dataclass(frozen=True)
class Sweep:
    """Prints loops over the tiles along an axis: those that are visible, and the rest if asked for.

    `again` is the text of a condition under which what is hidden counts all the same. With
    `is_late` it can be computed only after what is visible.
    """

    writer: AttentionWriter
    regions: list[Region]
    is_keys: bool = True
    again: str = ""
    is_late: bool = False

    @property
    def block(self) -> str:
        """The name of the size of tiles."""
        return "RBLOCK" if self.is_keys else "XBLOCK"

    @property
    def name(self) -> str:
        """The name of the positions."""
        return "column" if self.is_keys else "row"

    def print(self, body: Body) -> None:
        """Print the loops."""
        if self.regions:
            self._bounded(body)
        else:
            self._all(body)

    def _tile(self, body: Body, *, inside: bool) -> None:
        writer = self.writer
        writer.indent += 1
        saved = dict(writer.scalars)
        writer.positions(self.name, "start", masked=not inside and writer.overhangs(self.name))
        body(inside)
        writer.restore(saved)
        writer.indent -= 1

    def _all(self, body: Body) -> None:
        writer, block = self.writer, self.block
        end = writer.end_of(self.name)
        sizes, tiles = writer.call.sizes, writer.tiles
        size, step = (sizes.keys, tiles.columns) if self.is_keys else (sizes.queries, tiles.rows)
        if not (isinstance(size, int) and size < step):
            full = end if not writer.overhangs(self.name) else f"{end} // {block} * {block}"
            writer.emit(f"for start in range(0, {full}, {block}):")
            self._tile(body, inside=True)
        if writer.overhangs(self.name):
            writer.emit(f"for start in range({end} // {block} * {block}, {end}, {block}):")
            self._tile(body, inside=False)

    def _bounded(self, body: Body) -> None:
        writer, block = self.writer, self.block
        end, typed = writer.end_of(self.name), writer.options.index_type
        span = BoundsPrinter(writer, "k" if self.is_keys else "q").print(self.regions)
        writer.emit(
            f"low = tl.minimum(tl.maximum({span.low}, 0), {end}).to({typed}) // {block} * {block}",
            f"high = tl.maximum(tl.minimum({span.high}, {end}), low).to({typed})",
        )
        if self.again and not self.is_late:
            writer.emit(
                f"again = {self.again}",
                "low = tl.where(again, low * 0, low)",
                f"high = tl.where(again, high * 0 + {end}, high)",
            )
        writer.emit(
            f"inside = tl.minimum(tl.maximum({span.inside_low}, low), high).to({typed})",
            f"inside = tl.cdiv(inside, {block}) * {block}",
            f"inside_end = tl.maximum(tl.minimum({span.inside_high}, high), 0).to({typed})",
            f"inside_end = tl.maximum(inside_end // {block} * {block}, inside)",
            f"for start in range(inside, inside_end, {block}):",
        )
        self._tile(body, inside=True)
        writer.emit(
            f"left = (inside - low) // {block}",
            f"after = tl.cdiv(tl.maximum(high - inside_end, 0), {block})",
            "for step in range(0, left + after):",
            f"    start = tl.where(step < left, low + step * {block}, "
            f"inside_end + (step - left) * {block})",
        )
        self._tile(body, inside=False)
        if self.again and self.is_late:
            self._rest(body)

    def _rest(self, body: Body) -> None:
        writer, block = self.writer, self.block
        end = writer.end_of(self.name)
        writer.emit(
            f"again = {self.again}",
            f"tail = inside_end + after * {block}",
            f"before = tl.where(again, low // {block}, 0)",
            f"count = before + tl.where(again, tl.cdiv(tl.maximum({end} - tail, 0), {block}), 0)",
            "for step in range(0, count):",
            f"    start = tl.where(step < before, step * {block}, "
            f"tail + (step - before) * {block})",
        )
        self._tile(body, inside=False)
