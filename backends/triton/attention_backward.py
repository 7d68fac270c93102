"""Print attention backward: rows first, then gradients of keys and values, then of queries.

The algorithm is that of FlashAttention-2 (Dao, 2023). Weights come from the logarithms of the
forward direction; where these are so large that they have lost the number of keys, a row's largest
score and its total are computed once more.
"""

from __future__ import annotations

import math

from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Scalar, Store
from lynx.ir.native import AttentionBackwardCall, Strided
from lynx.ir.types import DType
from lynx.passes.attention.differentiate import GRAD, GRAD_DOT
from lynx.passes.attention.score import DOT
from lynx.passes.attention.simplify import known_in, simplified

from .attention_bounds import Sweep
from .attention_forward import FAR_BELOW, ForwardPrinter, printed
from .attention_memory import AttentionMemory
from .attention_writer import LOG2E, AttentionWriter, Tiles
from .expressions import joined
from .printer import PrintedStage
from .writer import PrintOptions

EXTREME = {True: 1000.0, False: 16.0}
"""Beyond it a logarithm is rounded by more than weights of low precision are, and by others."""

_LOG_OF_KEYS = 40.0
"""More than the logarithm of how many keys there may be."""


class RowsPrinter(ForwardPrinter):
    """Prints the kernel that prepares rows: what they are shifted and scaled by, and their share.

    It writes `shifts`, `scales` and `deltas`, and what each query gives to the sink.
    """

    kind = "rows"

    def print(self) -> PrintedStage:
        """Return the kernel."""
        writer, call = self.writer, self.memory.call
        self.checks = []  # The forward direction has made them.
        assert isinstance(call, AttentionBackwardCall), call
        self._begin()
        self._delta(call)
        row = self._row_place("logarithms", self.call.lse)
        writer.emit(
            f"lse = {writer.read(row, writer.mask_name('row'))}",
            f"extreme = tl.abs(lse) > {EXTREME[self.call.q.dtype.is_low_precision]}",
            "count = tl.max(tl.max(extreme.to(tl.int32), 1), 0)",
            f"count = tl.where(count > 0, {writer.size('keys')}, 0)",
            'most = tl.full([XBLOCK, 1], float("-inf"), tl.float32)',
            "total = tl.full([XBLOCK, 1], 0.0, tl.float32)",
            "for start in range(0, count, RBLOCK):",
        )
        writer.indent += 1
        saved = dict(writer.scalars)
        writer.positions("column", "start", masked=writer.overhangs("column"))
        self.products()
        self.softmax(self.scores(inside=False))
        writer.restore(saved)
        writer.indent -= 1
        self.add_sink()
        self._write_rows(call)
        return self._printed("attention_rows", "Prepare gradients: for each block of queries.")

    def _tensors(self) -> dict[str, Buffer]:
        names = {**super()._tensors(), "grad_output": self.memory.role("grad_output")}
        names.pop("keeps", None)
        if "grad_logarithms" in self.memory.roles:
            names["grad_logarithms"] = self.memory.role("grad_logarithms")
        if self.may_be_low:
            names["lows"] = self.memory.lows
        return {**names, **self.memory.rows}

    def _row_place(self, name: str, tensor: Strided) -> str:
        return self.writer.place(name, tensor, self._head(), "row")

    def _delta(self, call: AttentionBackwardCall) -> None:
        writer, head = self.writer, self._head()
        writer.load_parts("value", "output", self.call.out, head, "row", depth="depth")
        writer.load_parts("grad", "grad_output", call.grad_out, head, "row", depth="depth")
        products = [
            f"tl.sum(value_{n}.to(tl.float32) * grad_{n}.to(tl.float32), 1, keep_dims=True)"
            for n in range(len(writer.depths))
        ]
        writer.emit(f"share = {' + '.join(products)}")
        if call.grad_lse is not None:
            place = self._row_place("grad_logarithms", call.grad_lse)
            writer.emit(f"share = share - {writer.read(place, writer.mask_name('row'))}")

    def _write_rows(self, call: AttentionBackwardCall) -> None:
        writer = self.writer
        writer.emit(
            f"empty = {self.empty()}",
            'shift = tl.where(extreme, tl.where(most == float("-inf"), 0.0, most), lse)',
            "scale = tl.where(total == 0.0, empty, 1.0 / total)",
            "scale = tl.where(extreme, scale, 1.0)",
        )
        mask, place = writer.mask_name("row"), self._place_of_row()
        writer.write(f"shifts + {place}", "shift", mask)
        writer.write(f"scales + {place}", "scale", mask)
        writer.write(f"deltas + {place}", "share", mask)
        if call.sink is not None:
            weight = f"tl.exp2((sink - shift) * {LOG2E}) * scale"
            writer.write(f"of_sinks + {place}", f"-share * {weight}", mask)
        if self.may_be_low:
            below = 'float("-inf")'
            if self.mask.limit > -math.inf:
                below = repr(self.mask.limit + FAR_BELOW + _LOG_OF_KEYS)
            low = f"((lse > {below}) == 0)"
            low = f"{low} & {mask}" if mask else low
            lows = "lows + (pair + tl.zeros([XBLOCK, 1], tl.int32))"
            writer.write(lows, "tl.full([XBLOCK, 1], 1, tl.int32)", low)


class GradientPrinter(ForwardPrinter):
    """Prints what the kernels of gradients share: weights and gradients of products of a tile."""

    is_turned = False

    def __init__(
        self, memory: AttentionMemory, tiles: Tiles, options: PrintOptions, precision: str
    ) -> None:
        super().__init__(memory, tiles, options, precision)
        call = memory.call
        assert isinstance(call, AttentionBackwardCall), call
        self.backward = call
        self.checks = []
        self.derivative = call.derivative
        kernels = (self.kernel, self.derivative)
        self.writer = AttentionWriter(self.call, kernels, tiles, options, is_turned=self.is_turned)
        self.writer.precision = precision if self.call.q.dtype is DType.F32 else ""
        stores = [one for one in self.derivative.body if isinstance(one, Store)]
        (self.of_dot,) = (one.value for one in stores if one.buffer.name == GRAD_DOT)
        self.added = [one for one in stores if one.buffer.name != GRAD_DOT]
        known = known_in(self.derivative, self.known)
        self.inside = simplified(self.roots, {**self.known, **known})

    @property
    def roots(self) -> list[Scalar]:
        """All scalars that the kernels compute."""
        masks = [one.mask for one in self.added if one.mask is not None]
        return [self.score, self.of_dot, *(one.value for one in self.added), *masks]

    def _tensors(self) -> dict[str, Buffer]:
        memory = self.memory
        names = ["queries", "keys", "values", "grad_output"]
        names += ["keeps"] if self.call.keep is not None else []
        found = {name: memory.role(name) for name in names}
        rows = {name: memory.rows[name] for name in ("shifts", "scales", "deltas")}
        return {**found, **self._operands(), **rows}

    def _operands(self) -> dict[str, Buffer]:
        names = {buffer.name: name for buffer, name in self.writer.buffers.items()}
        return {names[one]: self.memory.role(one) for one in self.memory.operands}

    def again(self) -> str:
        """Return the condition under which hidden pairs of a head count."""
        if not self.may_be_low:
            return ""
        head, heads = self._head(), self.writer.size("heads")
        return f"tl.load(lows + ({self.writer.axis_names['b']} * {heads} + {head})) > 0"

    def load_rows(self) -> None:
        """Print the loads of what rows are shifted and scaled by, and of their shares."""
        writer = self.writer
        place, mask = self._place_of_row(), writer.mask_name("row")
        writer.emit(
            f"shift = {writer.read(f'shifts + {place}', mask)}",
            f"scale = {writer.read(f'scales + {place}', mask)}",
            f"share = {writer.read(f'deltas + {place}', mask)}",
        )

    def weights(self, *, inside: bool) -> None:
        """Print the weights of a tile: `weight`."""
        writer = self.writer
        scores = self.scores(inside=inside, masked=False)
        writer.emit(f"weight = tl.exp2(({scores} - shift) * {LOG2E}) * scale")
        self.blank("weight")

    def blank(self, name: str) -> None:
        """Print that a tile is zero where there is nothing to be summed over."""
        mask = self.writer.mask_name("row" if self.is_turned else "column")
        if mask:
            self.writer.emit(f"{name} = tl.where({mask}, {name}, 0.0)")

    def kept(self, name: str) -> str:
        """Return the text of a tile after dropout."""
        if self.call.keep is None:
            return name
        scale = self.call.keep_scale
        return (
            f"tl.where(is_kept, {name} * {scale!r}, 0.0)"
            if scale != 1.0
            else (f"tl.where(is_kept, {name}, 0.0)")
        )

    def derive(self, *, inside: bool, adds: bool) -> None:
        """Print the gradient of the products, `of_dot`, given that of weights, `gradient`."""
        writer = self.writer
        writer.emit(f"gradient = weight * ({self.kept('gradient')} - share)")
        writer.given(DOT, "product")
        writer.given(GRAD, "gradient")
        writer.replaced = self.inside if inside else simplified([], {})
        added = self.added if adds else []
        writer.compute([self.of_dot, *(root for one in added for root in _roots(one))])
        writer.emit(f"of_dot = {writer.tile_of(self.of_dot)}")
        self.blank("of_dot")
        for store in added:
            self._add(store)
        writer.replaced = lambda scalar: scalar

    def _add(self, store: Store) -> None:
        raise NotImplementedError


def _roots(store: Store) -> list[Scalar]:
    mask = [store.mask] if store.mask is not None else []
    return [store.value, *store.index.scalars, *mask]


class QueriesPrinter(GradientPrinter):
    """Prints the kernel of gradients of queries, and of operands of the score function."""

    kind = "queries"

    def print(self) -> PrintedStage:
        """Return the kernel."""
        writer, call = self.writer, self.backward
        self._begin()
        writer.depth_lanes("depth", writer.depths, 1)
        head = self._head()
        writer.load_parts("grad", "grad_output", call.grad_out, head, "row", depth="depth")
        writer.depth_lanes("depth", writer.depths, 0)
        self.load_rows()
        if call.q is not None:
            for n, part in enumerate(writer.inner):
                writer.emit(f"of_query_{n} = tl.zeros([XBLOCK, {part.width}], tl.float32)")
        Sweep(writer, self.regions, again=self.again()).print(self._tile)
        if call.q is not None:
            writer.depth_lanes("inner", writer.inner, 1)
            value = "of_query_{n}"
            writer.store_parts(value, "grad_queries", call.q, head, "row", depth="inner")
        return self._printed("attention_queries", "Gradients: for each block of queries.")

    def _tensors(self) -> dict[str, Buffer]:
        names = super()._tensors()
        if self.backward.q is not None:
            names["grad_queries"] = self.memory.role("grad_queries")
        own = {buffer.name: name for buffer, name in self.writer.buffers.items()}
        names.update({own[name]: one for name, one in self.memory.added.items()})
        if self.again():
            names["lows"] = self.memory.lows
        return names

    def _tile(self, inside: bool) -> None:
        writer, call = self.writer, self.call
        self.products()
        self.weights(inside=inside)
        writer.load_parts("value", "values", call.v, "shared", "column", depth="depth")
        total = ""
        for n in range(len(writer.depths)):
            writer.emit(f"gradient = {writer.dot(f'grad_{n}', f'value_{n}', total)}")
            total = "gradient"
        self.load_kept("row", "column")
        self.derive(inside=inside, adds=True)
        if self.backward.q is None:
            return
        factor = writer.narrowed("of_dot")
        for n in range(len(writer.inner)):
            product = writer.dot(factor, f"tl.trans(key_{n})", f"of_query_{n}")
            writer.emit(f"of_query_{n} = {product}")

    def _add(self, store: Store) -> None:
        """Print how a tile adds to the gradient of an operand, summed up first where it can be."""
        writer = self.writer
        writer.prepare(store)
        own = writer.index.tile(store.index)
        value = writer.tile_of(store.value)
        masks = [mask for mask in map(writer.mask_name, ("row", "column")) if mask]
        more = []
        if store.mask is not None:
            # What a condition hides may lie outside of the gradient.
            own = joined(own, writer.tiling.of(store.mask.axes))
            more.append(writer.use(store.mask))
        if masks or more:
            value = f"tl.where({' & '.join([*masks, *more])}, {value}, 0.0)"
        for axis, varies in enumerate(own):
            if not varies:
                value = f"tl.sum({value}, {axis}, keep_dims=True)"
        mask = writer.mask(own, *more)
        if any(own):
            place = writer.index.filled(store.index, own)
        else:
            place = f"{writer.index.text(store.index)} + tl.zeros([1, 1], tl.int32)"
        target = f"{writer.buffers[store.buffer]} + ({place})"
        if self.memory.is_apart(store):
            writer.write(target, value, mask)
            return
        if writer.options.is_deterministic:
            raise CompileError("kernel-unsupported", "gradients of operands are added in any order")
        given = f", {mask}" if mask else ""
        writer.emit(f'tl.atomic_add({target}, {value}{given}, sem="relaxed")')


class KeysPrinter(GradientPrinter):
    """Prints the kernel of gradients of keys and values: tiles have keys as rows."""

    kind = "keys"

    is_turned = True

    def print(self) -> PrintedStage:
        """Return the kernel."""
        writer, call = self.writer, self.call
        self._begin_keys()
        group = writer.group()
        if group == "1":
            writer.head("shared")
            self._head_of_queries()
        else:
            writer.emit(f"for member in range(0, {group}):")
            writer.indent += 1
            writer.head(f"shared * {group} + member")
            self._head_of_queries()
            writer.indent -= 1
        for name, tensor, values, depth, parts in (
            ("grad_keys", self.backward.k, "of_key_{n}", "inner", writer.inner),
            ("grad_values", self.backward.v, "of_value_{n}", "depth", writer.depths),
        ):
            if tensor is not None:
                writer.depth_lanes(depth, parts, 1)
                writer.store_parts(values, name, tensor, "shared", "column", depth=depth)
        sizes = call.sizes
        grid = ((sizes.keys, writer.tiles.columns), (sizes.batch, 1), (sizes.kv_heads, 1))
        return printed(writer, "attention_keys", "Gradients: for each block of keys.", grid)

    def _tensors(self) -> dict[str, Buffer]:
        names = super()._tensors()
        for name, tensor in (("grad_keys", self.backward.k), ("grad_values", self.backward.v)):
            if tensor is not None:
                names[name] = self.memory.role(name)
        if self.again():
            names["lows"] = self.memory.lows
        return names

    def _begin_keys(self) -> None:
        writer, call = self.writer, self.call
        for role, buffer in self._tensors().items():
            writer.tensor(role, buffer)
        writer.emit(f"count = tl.cdiv({writer.size('keys')}, RBLOCK)")
        writer.programs("count", writer.size("kv_heads"))
        writer.emit(
            f"shared = {writer.typed_index('pair % ' + writer.size('kv_heads'))}",
            "fixed = fixed * RBLOCK",
            "nil = tl.full([], 0, tl.int64)",
        )
        writer.positions("column", "fixed", masked=writer.overhangs("column"))
        writer.emit(f"fixed_end = tl.minimum(fixed + RBLOCK, {writer.size('keys')})")
        writer.depth_lanes("inner", writer.inner, 1)
        writer.load_parts("key", "keys", call.k, "shared", "column", depth="inner")
        writer.depth_lanes("inner", writer.inner, 0)
        writer.depth_lanes("depth", writer.depths, 1)
        writer.load_parts("value", "values", call.v, "shared", "column", depth="depth")
        for name, tensor, parts in (
            ("of_key", self.backward.k, writer.inner),
            ("of_value", self.backward.v, writer.depths),
        ):
            for n, part in enumerate(parts):
                if tensor is not None:
                    writer.emit(f"{name}_{n} = tl.zeros([RBLOCK, {part.width}], tl.float32)")

    def _head_of_queries(self) -> None:
        """Print what the queries of one head give."""
        writer = self.writer
        saved = dict(writer.scalars)
        roots = [self.score, self.of_dot]
        writer.given(DOT, "product")
        writer.given(GRAD, "gradient")
        writer.compute(roots, without="q")
        Sweep(writer, self.regions, is_keys=False, again=self.again()).print(self._tile)
        writer.restore(saved)

    def _tile(self, inside: bool) -> None:
        writer, call = self.writer, self.call
        head = self._head()
        writer.load_parts("query", "queries", call.q, head, "row", depth="inner")
        total = ""
        for n in range(len(writer.inner)):
            writer.emit(f"product = {writer.dot(f'key_{n}', f'query_{n}', total)}")
            total = "product"
        self.load_rows()
        self.weights(inside=inside)
        self.load_kept("row", "column")
        across = writer.across("row", "start")
        given = self.backward.grad_out
        writer.load_parts("grad", "grad_output", given, head, across, depth="depth")
        if self.backward.v is not None:
            weight = self.kept("weight")
            factor = writer.narrowed(f"({weight})" if " " in weight else weight)
            for n in range(len(writer.depths)):
                product = writer.dot(factor, f"grad_{n}", f"of_value_{n}")
                writer.emit(f"of_value_{n} = {product}")
        if self.backward.k is None:
            return
        total = ""
        for n in range(len(writer.depths)):
            product = writer.dot(f"value_{n}", f"tl.trans(grad_{n})", total)
            writer.emit(f"gradient = {product}")
            total = "gradient"
        self.derive(inside=inside, adds=False)
        factor = writer.narrowed("of_dot")
        for n in range(len(writer.inner)):
            product = writer.dot(factor, f"tl.trans(query_{n})", f"of_key_{n}")
            writer.emit(f"of_key_{n} = {product}")


def gradient_printers(call: AttentionBackwardCall) -> list[type[ForwardPrinter]]:
    """Return what prints the kernels of a backward call, in order."""
    found: list[type[ForwardPrinter]] = [RowsPrinter]
    if call.k is not None or call.v is not None:
        found.append(KeysPrinter)
    if call.q is not None or call.operands:
        found.append(QueriesPrinter)
    return found
