"""Print the file of an attention backward."""

from __future__ import annotations

from lynx.ir.dims import Dim
from lynx.ir.kernel import Apply, Kernel, Load, Scalar, Store
from lynx.ir.native import AttentionBackwardCall, Strided
from lynx.ir.types import DType
from lynx.passes.attention.differentiate import GRAD, GRAD_DOT
from lynx.passes.attention.simplify import known_in, simplified

from .access import separating
from .attention import (
    AttentionText,
    ScorePrinter,
    check_types,
    common_settings,
    conversions,
    operand_names,
    part,
    row_lines,
    scaled_product,
    typed,
    uncontracted,
    with_helpers,
)
from .attention_rows import Arguments, Rows
from .text import memory_type, product_text


class BackwardPrinter:
    """Prints the file of an attention backward."""

    def __init__(self, call: AttentionBackwardCall) -> None:
        self.call = call
        self.element = check_types(call.forward)
        self.real = DType.F64 if self.element is DType.F64 else DType.F32
        written = [b.name for b in call.derivative.buffers if b.is_written]
        gradients = [name for name in written if name != GRAD_DOT]
        self.arguments = Arguments(operand_names(call.forward.score), gradients)
        self.score = ScorePrinter(call.forward.score, self.arguments)
        self.derivative = DerivativePrinter(call.derivative, self.score, self.arguments)

    def print(self) -> AttentionText:
        """Return the text."""
        call, derivative = self.call, self.derivative
        functions = [*self.score.functions(), *derivative.functions(), *self._gradients()]
        wanted = {"Q": call.q, "K": call.k, "V": call.v, "SINK": call.sink}
        body = [
            *typed(self.element),
            *common_settings(call.forward, self.score),
            *(f"#define WANTS_{name} {int(x is not None)}" for name, x in wanted.items()),
            f"#define HAS_GRAD_LSE {int(call.grad_lse is not None)}",
            f"#define READS_DOT {int(derivative.reads_dot)}",
            f"#define GRADS {len(call.operands)}",
            *(
                f"#define APART_{axis.upper()} {int(derivative.is_apart(axis))}"
                for axis in ("b", "h", "k")
            ),
            f"#define PARTS_SIZE ({len(derivative.shared)} * PITCH)",
            "#define TASKS 32",
            "#define COPIED_NUMBERS (4LL << 20)",
            part("blocks"),
            *functions,
            part("backward"),
        ]
        messages = tuple(check.message for check in self.score.checks)
        return AttentionText(with_helpers("\n".join(body)), self.arguments, messages)

    def _gradients(self) -> list[str]:
        """Return the functions that tell the sizes of gradients of operands, and write them."""
        if not self.call.operands:
            return []
        names = self.arguments.symbol
        sizes = [
            f"sizes[{at}] = {product_text(list(tensor.shape), names)};"
            for at, tensor in enumerate(self.call.operands)
        ]
        cases = [
            line
            for at, tensor in enumerate(self.call.operands)
            for line in (f"if (which == {at}) {{", *self._written(at, tensor), "}")
        ]
        return [
            _function("void OWN(sizes_of_gradients)(const struct attention *x, i64 *sizes)", sizes),
            _function(
                "void OWN(write_gradient)(const struct attention *x, int which, const real *sums,\n"
                "                         i64 first, i64 last)",
                cases,
            ),
        ]

    def _written(self, at: int, tensor: Strided) -> list[str]:
        store = conversions(tensor.dtype, self.real)[1]
        kind = memory_type(tensor.dtype)
        lines = [f"{kind} *to = x->grads[{at}];", "for (i64 e = first; e < last; e++) {"]
        value = store.replace("(x)", "(sums[e])")
        place = "e"
        if not _is_dense(tensor):
            lines.append("  i64 rest = e, place = 0;")
            for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
                extent, step = self.arguments.dim(size), self.arguments.dim(stride)
                lines.append(f"  place += rest % ({extent}) * ({step}); rest /= {extent};")
            place = "place"
        return [f"  {line}" for line in (*lines, f"  to[{place}] = {value};", "}")]


class DerivativePrinter:
    """Prints what the derivative of a score kernel computes for a row of a tile."""

    def __init__(self, kernel: Kernel, score: ScorePrinter, arguments: Arguments) -> None:
        self.kernel = kernel
        self.arguments = arguments
        _, self.products = scaled_product(kernel)
        stores = [i for i in kernel.body if isinstance(i, Store)]
        (self.of_dot,) = (i.value for i in stores if i.buffer.name == GRAD_DOT)
        self.added = [i for i in stores if i.buffer.name != GRAD_DOT]
        if score.prescale != 1.0:
            self.of_dot = self._unscaled(self.of_dot)
        else:
            self.products = self.products[:1]
        self.known = known_in(kernel, score.known)
        self.shared = [i for i in self.added if self._is_shared(i)]
        self.reads_dot = False

    def _unscaled(self, gradient: Scalar) -> Scalar:
        """Return the gradient of the product that is scaled already, before it is scaled back."""
        source = gradient.instruction
        if isinstance(source, Apply) and source.function in ("mul", "div"):
            return source.arguments[0]
        return gradient

    def is_apart(self, axis: str) -> bool:
        """Whether all gradients of operands have other elements for other values of an axis."""
        sizes = self.kernel.sizes
        return all(
            axis in separating(store.index, sizes) or sizes[axis] == 1 for store in self.added
        )

    def _is_shared(self, store: Store) -> bool:
        """Whether the queries of a block add to the same elements."""
        axes = {term.of for term in store.index.terms if isinstance(term.of, str)}
        for scalar in store.index.scalars:
            axes.update(scalar.axes)
        moving, plain = _rows(self.arguments).parts(store.index)
        return "q" not in axes and (plain or not moving)

    def functions(self) -> list[str]:
        """Return the definitions of `derive`, `derive_inside` and `flush`."""
        masked = self._derive("derive", simplified([], {}))
        roots = [self.of_dot, *(i.value for i in self.added)]
        roots += [i.mask for i in self.added if i.mask is not None]
        inside = self._derive("derive_inside", simplified(roots, self.known))
        return [*uncontracted([masked, inside]), self._flush()]

    def _given(self) -> dict[Scalar, str]:
        given = dict.fromkeys(self.products, "s[l]")
        for instruction in self.kernel.body:
            if isinstance(instruction, Load) and instruction.buffer.name == GRAD:
                given[instruction.out] = "d[l]"
        return given

    def _derive(self, name: str, replaced: object) -> str:
        rows = Rows(self.arguments, self._given(), replaced)  # type: ignore[arg-type]
        loop_end: list[str] = []
        after: list[str] = []
        before: list[str] = []
        sums: list[str] = []
        is_ordered = False
        for at, store in enumerate(self.added):
            value = rows.text(store.value)
            if store.mask is not None:
                value = f"({rows.text(store.mask)} ? {value} : 0)"
            moving, plain = rows.parts(store.index)
            if store in self.shared:
                place = f"sums[{self.shared.index(store)} * PITCH{' + l' if moving else ''}]"
            else:
                place = rows.place(store.buffer, store.index)
            if moving:
                loop_end.append(f"{place} += {value};")
                is_ordered |= store not in self.shared and (not plain or self._has_twin(store))
                continue
            before.append(f"real sum{at} = 0;")
            sums.append(f"sum{at}")
            loop_end.append(f"sum{at} += {value};")
            after.append(f"{place} += sum{at};")
        gradient = rows.text(self.of_dot)
        if gradient != "d[l]":
            loop_end.append(f"d[l] = {gradient};")
        loop = [*rows.loop, *loop_end] if loop_end else []
        self.reads_dot |= any("s[l]" in line for line in loop)
        clause = f" reduction(+:{', '.join(sums)})" if sums else ""
        lines = row_lines(rows, loop, clause)
        if is_ordered:
            lines = [line for line in lines if not line.startswith("_Pragma")]
        head = (
            f"void OWN({name})(const struct attention *x, i64 b, i64 h, i64 q, i64 k0,\n"
            "                          i64 n, const real *restrict s, real *restrict d,\n"
            "                          real *const *grads, real *restrict sums)"
        )
        return _function(head, [*before, *lines, *after])

    def _has_twin(self, store: Store) -> bool:
        return sum(other.buffer is store.buffer for other in self.added) > 1

    def _flush(self) -> str:
        lines: list[str] = []
        for at, store in enumerate(self.shared):
            rows = _rows(self.arguments)
            moving, _ = rows.parts(store.index)
            place = rows.place(store.buffer, store.index)
            count = "n" if moving else "1"
            own = f"sums[{at} * PITCH + l]"
            lines += [
                "{",
                *rows.row,
                f"for (i64 l = 0; l < {count}; l++) {place} += {own}, {own} = 0;",
                "}",
            ]
        head = (
            "INLINE void OWN(flush)(const struct attention *x, i64 b, i64 h, i64 k0, i64 n,\n"
            "                       real *const *grads, real *sums)"
        )
        return _function(head, lines)


def _rows(arguments: Arguments) -> Rows:
    return Rows(arguments, {}, lambda x: x)


def _is_dense(tensor: Strided) -> bool:
    stride: Dim = 1
    for size, own in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if own != stride and size != 1:
            return False
        stride = stride * size
    return True


def _function(head: str, body: list[str]) -> str:
    static = "" if head.startswith("INLINE") else "NOINLINE "
    return "\n".join([f"{static}{head} {{", *(f"  {line}" for line in body), "}"])
