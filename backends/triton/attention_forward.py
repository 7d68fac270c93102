"""Print attention forward: online softmax over tiles of keys, for a block of queries.

The algorithm is that of FlashAttention-2 (Dao, 2023), in base 2. What was skipped because a mask
hides it is taken into account afterwards where it matters: in rows that see so little that what a
finite number hides counts. Unlike in eager, a hidden key or value that is not a number does not
spread: what is skipped is not read, as in the libraries.
"""

from __future__ import annotations

import math

from lynx.ir.kernel import Buffer, Check
from lynx.ir.types import DType
from lynx.passes.attention.masks import Mask, mask_of
from lynx.passes.attention.score import DOT, score_of
from lynx.passes.attention.simplify import simplified

from .attention_bounds import Sweep, regions_of
from .attention_memory import AttentionMemory
from .attention_tiles import UNKNOWN_DEPTH
from .attention_writer import LOG2E, AttentionWriter, Tiles
from .printer import PrintedStage, decorator
from .writer import PrintOptions

FAR_BELOW = 110.0
"""A score that is so much below the largest of a row has no weight beside it."""


class ForwardPrinter:
    """Prints the kernel of an attention forward; `kind` is the word for it that tiles go by."""

    kind = "forward"

    def __init__(
        self, memory: AttentionMemory, tiles: Tiles, options: PrintOptions, precision: str
    ) -> None:
        self.memory = memory
        self.call = memory.forward
        self.kernel = self.call.score
        self.writer = AttentionWriter(self.call, (self.kernel,), tiles, options)
        self.writer.precision = precision if self.call.q.dtype is DType.F32 else ""
        self.score = score_of(self.kernel)
        self.checks = [one for one in self.kernel.body if isinstance(one, Check)]
        self.mask: Mask = mask_of(self.kernel)
        self.regions, literals = regions_of(self.mask.literals)
        self.known = {literal.scalar: literal.wanted for literal in literals}
        self.inside = simplified([self.score], self.known)

    def print(self) -> PrintedStage:
        """Return the kernel."""
        self._begin()
        self._start_sums()
        self._sweep()
        self._finish()
        return self._printed("attention_forward", "Attention: for each block of queries.")

    # also for other kernels

    @property
    def may_be_low(self) -> bool:
        """Whether what is skipped may matter for gradients: to rows that see hardly anything.

        What a finite number hides may be all that a row sees. A row that sees nothing is NaN for
        all keys, unless it shall be zero.
        """
        is_exact = self.mask.limit == -math.inf
        return bool(self.regions) and not (is_exact and self.call.zero_empty)

    def _begin(self) -> None:
        """Print which block of queries of which head this is, and load the queries."""
        writer, call = self.writer, self.call
        for name, buffer in self._tensors().items():
            writer.tensor(name, buffer)
        writer.emit(f"count = tl.cdiv({writer.size('queries')}, XBLOCK)")
        writer.programs("count", writer.size("heads"), is_reversed=bool(self.regions))
        writer.head(f"pair % {writer.size('heads')}")
        writer.emit("fixed = fixed * XBLOCK", "nil = tl.full([], 0, tl.int64)")
        writer.positions("row", "fixed", masked=writer.overhangs("row"))
        writer.emit(
            f"shared = {writer.shared_of_head()}",
            f"fixed_end = tl.minimum(fixed + XBLOCK, {writer.size('queries')})",
        )
        writer.depth_lanes("inner", writer.inner, 1)
        writer.load_parts("query", "queries", call.q, self._head(), "row", depth="inner")
        self._lanes()
        writer.given(DOT, "product")
        writer.compute([self.score, *(check.condition for check in self.checks)], without="k")

    def _lanes(self) -> None:
        """Print the positions of depths as they lie in tiles of keys and values."""
        self.writer.depth_lanes("depth", self.writer.depths, 1)
        # Keys are read as columns.
        self.writer.depth_lanes("inner", self.writer.inner, 0)

    def _head(self) -> str:
        return self.writer.axis_names["h"]

    def _place_of_row(self) -> str:
        """Return the text of the place of a row in scratch memory."""
        writer = self.writer
        b, h = (writer.axis_names[axis] for axis in ("b", "h"))
        return f"(({b} * {writer.size('heads')} + {h}) * {writer.size('queries')} + row)"

    def _tensors(self) -> dict[str, Buffer]:
        memory = self.memory
        names = ["queries", "keys", "values", "output", "logarithms"]
        names += ["sinks"] if self.call.sink is not None else []
        names += ["keeps"] if self.call.keep is not None else []
        return {**{name: memory.role(name) for name in names}, **self._operands()}

    def _operands(self) -> dict[str, Buffer]:
        """Return the operands of the score function, by the names that the writer gave them."""
        read = {buffer.name for buffer in self.kernel.buffers}
        names = {buffer.name: name for buffer, name in self.writer.buffers.items()}
        return {names[one]: self.memory.role(one) for one in self.memory.operands if one in read}

    def _start_sums(self) -> None:
        writer = self.writer
        writer.emit(
            'most = tl.full([XBLOCK, 1], float("-inf"), tl.float32)',
            "total = tl.full([XBLOCK, 1], 0.0, tl.float32)",
        )
        for n, part in enumerate(writer.depths):
            writer.emit(f"sums_{n} = tl.zeros([XBLOCK, {part.width}], tl.float32)")

    def _sweep(self) -> None:
        limit, again = self.mask.limit, ""
        if self.regions and limit > -math.inf:
            mask = self.writer.mask_name("row")
            low = f"(most > {limit + FAR_BELOW!r}) == 0"
            low = f"({low}) & {mask}" if mask else low
            again = f"tl.max(tl.max(({low}).to(tl.int32), 1), 0) > 0"
        Sweep(self.writer, self.regions, again=again, is_late=True).print(self._tile)

    def products(self) -> None:
        """Print the products of queries with a tile of keys."""
        writer = self.writer
        writer.load_parts("key", "keys", self.call.k, "shared", "column", depth="inner")
        total = ""
        for n in range(len(writer.inner)):
            writer.emit(f"product = {writer.dot(f'query_{n}', f'key_{n}', total)}")
            total = "product"

    def scores(self, *, inside: bool, masked: bool = True) -> str:
        """Print the scores of a tile of products; return their text."""
        writer = self.writer
        writer.given(DOT, "product")
        writer.replaced = self.inside if inside else simplified([], {})
        conditions = [check.condition for check in self.checks]
        writer.compute([self.score, *conditions])
        for number, check in enumerate(self.checks):
            writer.numbered_check(check, number)
        text = writer.tile_of(self.score)
        writer.replaced = lambda scalar: scalar
        mask = writer.mask_name("column") if masked else ""
        return f'tl.where({mask}, {text}, float("-inf"))' if mask else text

    def softmax(self, scores: str) -> None:
        """Print how a tile of scores changes the largest and the total: weights, and a factor."""
        self.writer.emit(
            f"weight = {scores}",
            "larger = tl.maximum(most, tl.max(weight, 1, keep_dims=True))",
            'shift = tl.where(larger == float("-inf"), 0.0, larger)',
            f"weight = tl.exp2((weight - shift) * {LOG2E})",
            f"factor = tl.exp2((most - shift) * {LOG2E})",
            "total = total * factor + tl.sum(weight, 1, keep_dims=True)",
            "most = larger",
        )

    def _tile(self, inside: bool) -> None:
        writer, call = self.writer, self.call
        self.products()
        self.softmax(self.scores(inside=inside))
        self.load_kept("row", "column")
        if call.keep is not None:
            writer.emit("weight = tl.where(is_kept, weight, 0.0)")
        across = writer.across("column", "start")
        writer.load_parts("value", "values", call.v, "shared", across, depth="depth")
        for n in range(len(writer.depths)):
            product = writer.dot(writer.narrowed("weight"), f"value_{n}", f"sums_{n} * factor")
            writer.emit(f"sums_{n} = {product}")

    def load_kept(self, row: str, column: str) -> None:
        """Print the load of what dropout keeps, as truth values."""
        writer, keep = self.writer, self.call.keep
        if keep is not None:
            place = writer.place("keeps", keep, self._head(), row, column)
            masks = (writer.mask_name("row"), writer.mask_name("column"))
            writer.emit(f"is_kept = {writer.read(place, *masks, other='0')} != 0")

    def add_sink(self) -> None:
        """Print how one more logit changes the largest and the total, if there is one."""
        writer, sink = self.writer, self.call.sink
        if sink is None:
            return
        place = writer.place("sinks", sink, self._head(), "row")
        if not any(sink.strides):
            place = "sinks + tl.zeros([XBLOCK, 1], tl.int32)"
        elif sink.strides[2] == 0:
            place = f"{place} + tl.zeros([XBLOCK, 1], tl.int32)"
        writer.emit(
            f"sink = {writer.read(place, writer.mask_name('row'))}.to(tl.float32)",
            "larger = tl.maximum(most, sink)",
            'shift = tl.where(larger == float("-inf"), 0.0, larger)',
            f"factor = tl.exp2((most - shift) * {LOG2E})",
            f"total = total * factor + tl.exp2((sink - shift) * {LOG2E})",
            "most = larger",
        )

    def empty(self) -> str:
        """Return what rows that see nothing give."""
        if self.call.zero_empty:
            return "0.0"
        keys = self.call.sizes.keys
        if isinstance(keys, int):
            return "0.0" if keys == 0 else 'float("nan")'
        return f'tl.where({self.writer.size("keys")} == 0, 0.0, float("nan"))'

    def _finish(self) -> None:
        writer, call = self.writer, self.call
        writer.emit("factor = tl.full([XBLOCK, 1], 1.0, tl.float32)")
        self.add_sink()
        scale = "factor" if call.keep_scale == 1.0 else f"factor * {call.keep_scale!r}"
        writer.emit(
            f"empty = {self.empty()}",
            f"scale = tl.where(total == 0.0, empty, {scale} / total)",
            'lse = tl.where(total == 0.0, float("-inf"), most + tl.log(total))',
            'lse = tl.where(most == float("inf"), most, lse)',
        )
        place = writer.place("logarithms", call.lse, self._head(), "row")
        writer.write(place, "lse", writer.mask_name("row"))
        value = "sums_{n} * scale"
        writer.store_parts(value, "output", call.out, self._head(), "row", depth="depth")

    def _printed(self, name: str, summary: str) -> PrintedStage:
        sizes = self.call.sizes
        grid = ((sizes.queries, self.writer.tiles.rows), (sizes.batch, 1), (sizes.heads, 1))
        return printed(self.writer, name, summary, grid)


def printed(
    writer: AttentionWriter, name: str, summary: str, grid: tuple[tuple[object, int], ...]
) -> PrintedStage:
    """Return a kernel with the lines of a writer, launched for all blocks of a grid."""
    tiles = writer.tiles
    constants: dict[str, int | str] = {"XBLOCK": tiles.rows, "RBLOCK": tiles.columns}
    widths = {part.width for part in (*writer.inner, *writer.depths)}
    constants |= {name: UNKNOWN_DEPTH for name in ("DBLOCK", "EBLOCK") if name in widths}
    if writer.options.index_type == "INDEX":
        constants["INDEX"] = "tl.int32"
    parameters = writer.finished()
    arguments = [one.name for one in parameters] + [f"{c}: tl.constexpr" for c in constants]
    lines = [
        decorator(parameters),
        f"def {name}({', '.join(arguments)}):",
        f'    """{summary}"""',
    ]
    text = "\n".join([*lines, *writer.hoisted, *writer.lines]) + "\n"
    launch: dict[str, int | bool] = {
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "enable_fp_fusion": True,
    }
    return PrintedStage(name, text, parameters, constants, (grid,), launch)
