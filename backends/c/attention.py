"""Print attentions: one file of C for each kind of them, and how a segment calls it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lynx.ir.errors import CompileError
from lynx.ir.kernel import Apply, Check, Kernel, Scalar
from lynx.ir.native import AttentionCall
from lynx.ir.types import DType
from lynx.passes.attention.masks import SURELY_HIDDEN, Mask, mask_of, number_of
from lynx.passes.attention.score import DOT, SCORE, dot_of, score_of
from lynx.passes.attention.simplify import simplified

from .attention_masks import BoundsPrinter, regions_of
from .attention_rows import Arguments, Rows
from .integers import division_text
from .math import helpers_text
from .prelude import STEP, TYPES
from .text import memory_type, number

ELEMENTS = (DType.F32, DType.F64, DType.BF16, DType.F16)
"""The types of queries, keys and values."""

FLAGS = ("-ffp-contract=fast",)
"""Sums of products may be contracted: they are rounded once less than the library's."""

NAME = "@NAME@"
_FEW_ROWS = 4
_FAR_BELOW = 110.0
"""A score that is so much below the largest of a row has no weight beside it."""


@dataclass(frozen=True)
class AttentionText:
    """The file of an attention, with `NAME` for its name, and what its function is passed.

    `messages` say what failed where the score function checks something.
    """

    text: str
    arguments: Arguments
    messages: tuple[str, ...] = ()


@functools.cache
def part(name: str) -> str:
    """Return a part of the text of attentions that is always the same."""
    return Path(__file__).with_name(f"attention_{name}.c").read_text(encoding="utf-8")


class ScorePrinter:
    """Prints what a score kernel computes, and what is known of its mask."""

    def __init__(self, kernel: Kernel, arguments: Arguments) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self.score = score_of(kernel)
        self.checks = [i for i in kernel.body if isinstance(i, Check)]
        self.mask: Mask = mask_of(kernel)
        self.regions, self.affine, self.other = regions_of(self.mask.literals)
        self.prescale, self.products = scaled_product(kernel)
        known = {literal.scalar: literal.wanted for literal in self.affine}
        self.known = known
        self.inside = simplified([self.score], known)

    @property
    def skips(self) -> bool:
        """Whether some blocks of scores need not be computed."""
        return not self.mask.is_trivial

    @property
    def has_visible(self) -> bool:
        """Whether data tell which blocks are hidden."""
        return bool(self.other or self.mask.terms)

    def rows(self, replaced: Callable[[Scalar], Scalar] = lambda x: x) -> Rows:
        """Return a printer of rows in which `s[l]` is the product."""
        return Rows(self.arguments, dict.fromkeys(self.products, "s[l]"), replaced)

    def functions(self) -> list[str]:
        """Return the definitions of `bounds`, `is_visible`, `score` and `score_inside`."""
        parts = [BoundsPrinter(self.rows()).print(self.regions)]
        if self.has_visible:
            parts.append(self._is_visible())
        parts.append(self.row_function("score", self.rows()))
        parts.append(self.row_function("score_inside", self.rows(self.inside)))
        return uncontracted(parts)

    def row_function(self, name: str, rows: Rows) -> str:
        """Return a function that makes scores of the products of a row."""
        text = rows.text(self.score)
        conditions = [f"!({rows.text(check.condition)})" for check in self.checks]
        failing = [f"bad{n} |= {condition};" for n, condition in enumerate(conditions)]
        loop = [] if text == "s[l]" else [*rows.loop, *failing, f"s[l] = {text};"]
        clause = f" reduction(|:{', '.join(f'bad{n}' for n in range(len(failing)))})"
        before = [f"i32 bad{n} = 0;" for n in range(len(failing))]
        after = [f"if (bad{n}) note_failure(x, x->codes[{n}]);" for n in range(len(failing))]
        lines = [*before, *row_lines(rows, loop, clause if failing else ""), *after]
        head = (
            f"NOINLINE void OWN({name})(const struct attention *x, i64 b, i64 h, i64 q, i64 k0,\n"
            f"                          i64 n, real *restrict s) {{"
        )
        return "\n".join([head, *(f"  {line}" for line in lines), "}"])

    def _is_visible(self) -> str:
        rows = self.rows()
        conditions: list[str] = []
        scalars = [literal.scalar for literal in self.other]
        for literal in self.other:
            conditions.append(f"({rows.text(literal.scalar)}) == {int(literal.wanted)}")
        for term in self.mask.terms:
            limit = number(SURELY_HIDDEN, term.dtype)
            # Not a number is not hidden.
            conditions.append(f"!({rows.text(term)} <= {limit})")
            scalars.append(term)
        loop = [*rows.loop, f"found |= {' & '.join(conditions)};"]
        one_row = "q" not in {axis for scalar in scalars for axis in scalar.axes}
        body = [
            f"for (i64 q = q0; q < {'q0 + 1' if one_row else 'q1'}; q++) {{",
            "  i32 found = 0;",
            *(f"  {line}" for line in row_lines(rows, loop, " reduction(|:found)")),
            "  if (found) return 1;",
            "}",
            "return 0;",
        ]
        head = (
            "NOINLINE int OWN(is_visible)(const struct attention *x, i64 b, i64 h, i64 q0,\n"
            "                             i64 q1, i64 k0, i64 n) {"
        )
        return "\n".join([head, *(f"  {line}" for line in body), "}"])

    def skipped_below(self) -> str:
        """Return below which shift of a row what was skipped may matter."""
        limit = self.mask.limit
        if limit == -math.inf:
            return "(-INFINITE)"
        return f"({limit + _FAR_BELOW!r})"


def uncontracted(functions: list[str]) -> list[str]:
    """Return functions in which no product is contracted with a sum, unlike in the rest of a file.

    What a model computes is rounded as in eager: a mask may hang on the last place of a number.
    They must not be inlined.
    """
    return [
        "#if defined(__clang__)\n#pragma clang fp contract(off)\n#else\n"
        '#pragma GCC push_options\n#pragma GCC optimize("fp-contract=off")\n#endif',
        *functions,
        "#if defined(__clang__)\n#pragma clang fp contract(fast)\n#else\n"
        "#pragma GCC pop_options\n#endif",
    ]


def row_lines(rows: Rows, loop: list[str], clause: str = "") -> list[str]:
    """Return the statements of a row and the loop over its keys; nothing if the loop is empty."""
    if not loop:
        return []
    lines = [*rows.row, "const i32 first = (i32)k0;"]
    joined = "\n".join([*lines, *loop])
    for dtype in ("f32", "f64"):
        if f"one_{dtype}" in joined:
            lines.insert(0, f"const {dtype} one_{dtype} = lynx_one_{dtype}();")
    body = [f"  {line}" for line in loop]
    return [
        *lines,
        f'_Pragma("omp simd{clause}")',
        "for (i32 l = 0; l < (i32)n; l++) {",
        *body,
        "}",
    ]


def scaled_product(kernel: Kernel) -> tuple[float, tuple[Scalar, ...]]:
    """Return the number by which queries may be multiplied, and the scalars that are the product.

    If all that reads the product multiplies it by one number, the queries are.
    """
    dot = dot_of(kernel)
    if dot is None:
        return 1.0, ()
    users = [i for i in kernel.body if dot in i.operands]
    user = users[0] if len(users) == 1 else None
    if isinstance(user, Apply):
        value = number_of(user.arguments[-1])
        if user.function == "mul" and value is None:
            value = number_of(user.arguments[0])
        is_scale = user.function == "mul" or (
            user.function == "div" and user.arguments[0] is dot and value != 0
        )
        if is_scale and value is not None and 1e-6 < abs(value) < 1e6:
            return (value if user.function == "mul" else 1 / value), (dot, user.out)
    return 1.0, (dot,)


def operand_names(kernel: Kernel) -> list[str]:
    """Return the names of the buffers of a score kernel that are operands."""
    return [buffer.name for buffer in kernel.buffers if buffer.name not in (DOT, SCORE)]


def typed(element: DType) -> list[str]:
    """Return the definitions that an element type decides."""
    real = DType.F64 if element is DType.F64 else DType.F32
    suffix = "" if real is DType.F64 else "f"
    is_wide = real is DType.F64
    load, store = conversions(element, real)
    return [
        f"#define REAL_BYTES {8 if is_wide else 4}",
        f"typedef {real} real;",
        f"typedef {'i64' if is_wide else 'i32'} whole;",
        f"typedef {memory_type(element)} element;",
        f"#define IS_ROUNDED {int(element.is_low_precision)}",
        f"#define IS_BF16 {int(element is DType.BF16)}",
        "#define TYPED(name) typed_##name",
        f"#define OWN(name) {NAME}_##name",
        f"#define load_element(x) {load}",
        f"#define store_element(x) {store}",
        f"#define INFINITE __builtin_inf{suffix}()",
        '#define NOT_A_NUMBER __builtin_nan("")',
        f"#define log_real(x) lynx_log_{real}(x, lynx_one_{real}())",
        f"#define ROUNDER {'6755399441055744.0' if is_wide else '12582912.0f'}",
        f"#define MANTISSA {52 if is_wide else 23}",
        f"#define EXPONENT_OF_ONE {'0x3ff0000000000000LL' if is_wide else '0x3f800000'}",
        f"#define FAR_FROM_ZERO {1000 if element.is_low_precision else 16}",
        f"#define LEAST_EXPONENT {'-1022.0' if is_wide else '-126.0f'}",
    ]


def conversions(element: DType, real: DType) -> tuple[str, str]:
    """Return how an element `x` becomes a number to compute with, and the other way round."""
    if element.is_low_precision:
        return f"lynx_from_{element}(x)", f"lynx_to_{element}(x)"
    return f"(({real})(x))", f"(({memory_type(element)})(x))"


def check_types(call: AttentionCall) -> DType:
    """Return the element type of an attention; `CompileError` if it is not served."""
    element = call.q.dtype
    if element not in ELEMENTS or {call.k.dtype, call.v.dtype, call.out.dtype} != {element}:
        raise CompileError("kernel-unsupported", f"no attention of type {element}")
    return element


def with_helpers(body: str) -> str:
    """Return a file: the text of a body, after all that it uses."""
    divisions = division_text(body)
    helpers = helpers_text(body + divisions)
    parts = [TYPES, helpers, divisions, STEP, part("prelude"), body]
    return "\n".join(part for part in parts if part)


class ForwardPrinter:
    """Prints the file of an attention forward."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call
        self.element = check_types(call)
        self.arguments = Arguments(operand_names(call.score))
        self.score = ScorePrinter(call.score, self.arguments)

    def print(self) -> AttentionText:
        """Return the text."""
        functions = self.score.functions()
        body = [
            *typed(self.element),
            *common_settings(self.call, self.score),
            part("blocks"),
            *functions,
            part("forward"),
        ]
        messages = tuple(check.message for check in self.score.checks)
        return AttentionText(with_helpers("\n".join(body)), self.arguments, messages)


def common_settings(call: AttentionCall, score: ScorePrinter) -> list[str]:
    """Return the definitions that the text of both directions asks for."""
    sink = call.sink.dtype if call.sink is not None else None
    real = DType.F64 if call.q.dtype is DType.F64 else DType.F32
    return [
        f"enum {{ BLOCK_ROWS = 96, PACKED_KEYS = 192, FEW_ROWS = {_FEW_ROWS} }};",
        f"#define MAY_BE_FEW {int(may_be_few(call))}",
        f"#define HAS_INSIDE {int(bool(score.affine))}",
        "enum { TILE_KEYS = 256 / COLUMNS * COLUMNS };",
        "#define PITCH (TILE_KEYS + COLUMNS)",
        "#define WAVE_BYTES (32LL << 20)",
        "#define ALONE_BYTES (192LL << 10)",
        f"#define PRESCALE {score.prescale!r}",
        f"#define HAS_SKIPS {int(score.skips)}",
        f"#define HAS_VISIBLE {int(score.has_visible)}",
        f"#define SKIPPED_BELOW {score.skipped_below()}",
        f"#define HAS_KEEP {int(call.keep is not None)}",
        f"#define HAS_SINK {int(sink is not None)}",
        f"#define ZERO_EMPTY {int(call.zero_empty)}",
        *(
            [
                f"typedef {memory_type(sink)} sink_element;",
                f"#define load_sink(x) {conversions(sink, real)[0]}",
                f"#define store_sink(x) {conversions(sink, real)[1]}",
            ]
            if sink is not None
            else []
        ),
    ]


def may_be_few(call: AttentionCall) -> bool:
    """Whether there may be so few queries a head of keys that those are read where they lie."""
    sizes = (call.sizes.queries, call.sizes.heads, call.sizes.kv_heads)
    if not all(isinstance(size, int) for size in sizes):
        return True
    queries, heads, kv_heads = map(int, sizes)
    return queries * heads <= (2 if queries == 1 else 1) * _FEW_ROWS * max(1, kv_heads)


def prelude_text() -> str:
    """Return what a file needs that calls attentions."""
    return part("prelude")


def named(text: str, name: str) -> str:
    """Return the text with a name."""
    return text.replace(NAME, name)
