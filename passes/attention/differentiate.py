"""The derivative of a score kernel: what the gradient of a score gives to all that it is made of.

Reverse mode over the scalars of one pair of a query and a key. What an operand is given is added to
a dense tensor, at the place of the element that was read; so broadcasting and gathering need no
rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lynx.ir.dims import Dim, simplify, symbol
from lynx.ir.errors import CompileError
from lynx.ir.kernel import (
    Apply,
    Buffer,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    Kernel,
    KernelBuilder,
    Load,
    Position,
    Scalar,
    Store,
    Term,
)
from lynx.ir.ops.fusion import Region
from lynx.ir.program import extent
from lynx.ir.types import DType

from .score import DOT, SCORE, Strides, row_major, score_kernel, score_of

GRAD = "grad"
"""The buffer of gradients of scores."""

GRAD_DOT = "grad_dot"
"""The buffer of gradients of products of queries and keys."""


def derivative_kernel(
    region: Region, strides: Sequence[Strides | None], wanted: Sequence[int]
) -> Kernel:
    """Return the kernel of the derivative of a score function; operands are as in `score_kernel`.

    Its buffers are `DOT` if it is read, the operands that are, `GRAD`, `GRAD_DOT`, and for each of
    the `wanted` operands `grad_x<index>`, dense, of the type of the scores, which is added to.
    `CompileError` if a function has no derivative here.
    """
    symbolic = list(strides)
    places: dict[str, tuple[dict[str, Dim], dict[str, Dim]]] = {}
    for index in wanted:
        own, shape = strides[index], region.parameters[1 + index].shape
        assert own is not None, index
        names = [f"stride_{index}_{axis}" for axis in range(len(own))]
        symbolic[index] = tuple(symbol(name) for name in names)
        actual = dict(zip(names, own, strict=True))
        dense = dict(zip(names, row_major(shape), strict=True))
        places[f"x{index}"] = (actual, dense)
    kernel = score_kernel(region, symbolic)
    return _Reverse(kernel, places, _dense_buffers(region, wanted, score_of(kernel).dtype)).run()


def plain_derivative(score: Kernel) -> Kernel:
    """Return the derivative of scores that are the products themselves."""
    return _Reverse(score, {}, {}).run()


def _dense_buffers(region: Region, wanted: Sequence[int], dtype: DType) -> dict[str, Buffer]:
    found: dict[str, Buffer] = {}
    for index in wanted:
        shape = region.parameters[1 + index].shape
        reach = extent(shape, row_major(shape))
        found[f"x{index}"] = Buffer(f"grad_x{index}", dtype, reach, is_written=True)
    return found


class _Reverse:
    """Copies a score kernel with the strides that there are, and adds its derivative."""

    def __init__(
        self,
        kernel: Kernel,
        places: Mapping[str, tuple[dict[str, Dim], dict[str, Dim]]],
        dense: Mapping[str, Buffer],
    ) -> None:
        self.kernel = kernel
        self.places = places
        self.dense = dense
        self.builder = KernelBuilder()
        for axis in kernel.axes:
            self.builder.axis(axis.name, axis.size)
        self.buffers = {
            buffer: Buffer(buffer.name, buffer.dtype, self._extent(buffer))
            for buffer in kernel.buffers
        }
        self.copies: dict[Scalar, Scalar] = {}
        self.gradients: dict[Scalar, Scalar] = {}
        self.active: set[Scalar] = set()

    def _extent(self, buffer: Buffer) -> Dim:
        actual, _ = self.places.get(buffer.name, ({}, {}))
        return _with(buffer.extent, actual)

    def run(self) -> Kernel:
        """Return the derivative."""
        builder = self.builder
        (store,) = (i for i in self.kernel.body if isinstance(i, Store))
        for instruction in self.kernel.body:
            # What is checked of the score was checked when it was computed first.
            if not isinstance(instruction, Store | Check):
                self._copy(instruction)
        real = store.value.dtype
        grad = Buffer(GRAD, real, store.buffer.extent)
        self.gradients[store.value] = builder.load(grad, store.index)
        of_dot: Scalar | None = None
        added: list[tuple[Load, Scalar]] = []
        for instruction in reversed(self.kernel.body):
            if not instruction.results or instruction.results[0] not in self.gradients:
                continue
            if instruction.results[0] not in self.active:
                continue
            gradient = self.gradients[instruction.results[0]]
            if not isinstance(instruction, Load):
                self._follow(instruction, gradient)
            elif instruction.buffer.name == DOT:
                of_dot = gradient
            else:
                added.append((instruction, gradient))
        grad_dot = Buffer(GRAD_DOT, real, store.buffer.extent, is_written=True)
        builder.store(grad_dot, store.index, of_dot or builder.constant(0.0, real))
        for load, gradient in added:
            self._add(load, builder.convert(gradient, real))
        return self._finished(grad, grad_dot)

    def _finished(self, grad: Buffer, grad_dot: Buffer) -> Kernel:
        needed = _needed(self.builder.body)
        read = {i.buffer for i in needed if isinstance(i, Load)}
        given = [self.buffers[b] for b in self.kernel.buffers if b.name != SCORE]
        given = [buffer for buffer in given if buffer in read]
        axes, body = tuple(self.builder.axes.values()), tuple(needed)
        buffers = (*given, grad, grad_dot, *self.dense.values())
        return Kernel("derivative", axes, buffers, body)

    def _copy(self, instruction: Instruction) -> None:
        builder, of = self.builder, self.copies.__getitem__
        builder.loc = instruction.loc
        match instruction:
            case Constant():
                copy = builder.constant(instruction.value, instruction.dtype)
            case Position():
                copy = builder.position(self._index(instruction.index, {}))
            case Load():
                name = instruction.buffer.name
                index = self._index(instruction.index, self.places.get(name, ({}, {}))[0])
                mask = of(instruction.mask) if instruction.mask is not None else None
                buffer = self.buffers[instruction.buffer]
                copy = builder.load(buffer, index, mask, instruction.other)
                if name == DOT or name in self.places:
                    self.active.add(instruction.out)
            case Apply():
                arguments = tuple(map(of, instruction.arguments))
                copy = builder.apply(instruction.function, *arguments, dtype=instruction.dtype)
            case Convert():
                copy = builder.convert(of(instruction.x), instruction.dtype)
            case _:
                raise CompileError("no-derivative", f"cannot follow {type(instruction).__name__}")
        is_active = any(operand in self.active for operand in instruction.operands)
        if copy.dtype.is_floating and is_active:
            self.active.add(instruction.results[0])
        self.copies[instruction.results[0]] = copy

    def _index(self, index: Index, values: Mapping[str, Dim]) -> Index:
        terms = []
        for term in index.terms:
            of = term.of if isinstance(term.of, str) else self.copies[term.of]
            stride = _with(term.stride, values)
            if stride != 0:
                terms.append(Term(of, stride, term.divisor, term.modulus))
        return Index(tuple(terms), _with(index.offset, values))

    def _add(self, load: Load, gradient: Scalar) -> None:
        name = load.buffer.name
        index = self._index(load.index, self.places[name][1])
        mask = self.copies[load.mask] if load.mask is not None else None
        self.builder.loc = load.loc
        self.builder.store(self.dense[name], index, gradient, mask, "add")

    def _follow(self, instruction: Instruction, gradient: Scalar) -> None:
        """Give the operands of an instruction their shares."""
        self.builder.loc = instruction.loc
        if isinstance(instruction, Convert):
            self._give(instruction.x, gradient)
            return
        assert isinstance(instruction, Apply), instruction
        rule = _RULES.get(instruction.function)
        if rule is None:
            raise CompileError(
                "no-derivative", f"{instruction.function} has no derivative", instruction.loc
            )
        arguments = tuple(self.copies[argument] for argument in instruction.arguments)
        calculus = _Calculus(self.builder, instruction.dtype)
        result = self.copies[instruction.out]
        shares = rule(calculus, calculus.converted(gradient), result, arguments)
        for argument, share in zip(instruction.arguments, shares, strict=True):
            if share is not None:
                self._give(argument, share())

    def _give(self, x: Scalar, gradient: Scalar) -> None:
        if x not in self.active:
            return
        wide = DType.F32 if x.dtype.is_low_precision else x.dtype
        gradient = self.builder.convert(gradient, wide)
        known = self.gradients.get(x)
        if known is not None:
            gradient = self.builder.apply("add", known, gradient, dtype=wide)
        self.gradients[x] = gradient


def _with(value: Dim, values: Mapping[str, Dim]) -> Dim:
    if isinstance(value, int) or not values:
        return value
    return simplify(value.subs({symbol(name): number for name, number in values.items()}))


def _needed(body: Sequence[Instruction]) -> list[Instruction]:
    """Return the instructions that the stores depend on, in order."""
    needed: set[Instruction] = {i for i in body if isinstance(i, Store)}
    for instruction in reversed(body):
        if instruction in needed:
            needed.update(operand.instruction for operand in instruction.operands)
    return [instruction for instruction in body if instruction in needed]


@dataclass(frozen=True)
class _Calculus:
    """Short names for the functions that derivatives are made of, in one type."""

    builder: KernelBuilder
    dtype: DType

    def number(self, value: float) -> Scalar:
        return self.builder.constant(value, self.dtype)

    def converted(self, x: Scalar) -> Scalar:
        return self.builder.convert(x, self.dtype)

    def of(self, function: str, *arguments: Scalar) -> Scalar:
        return self.builder.apply(function, *arguments, dtype=self.dtype)

    def is_(self, function: str, *arguments: Scalar) -> Scalar:
        return self.builder.apply(function, *arguments, dtype=DType.BOOL)

    def mul(self, x: Scalar, y: Scalar) -> Scalar:
        return self.of("mul", x, y)

    def times(self, x: Scalar, value: float) -> Scalar:
        return self.mul(x, self.number(value))


_Share: TypeAlias = Callable[[], Scalar]
_Rule: TypeAlias = Callable[
    [_Calculus, Scalar, Scalar, tuple[Scalar, ...]], tuple[_Share | None, ...]
]


def _unary(factor: Callable[[_Calculus, Scalar, Scalar, Scalar], Scalar]) -> _Rule:
    """Return the rule of a function of one operand: the share from gradient, operand and result."""

    def rule(
        c: _Calculus, g: Scalar, y: Scalar, arguments: tuple[Scalar, ...]
    ) -> tuple[_Share | None, ...]:
        (x,) = arguments
        return (lambda: factor(c, g, x, y),)

    return rule


def _choice(chooses_first: str) -> _Rule:
    """Return the rule of maximum or minimum: equal operands share."""

    def rule(
        c: _Calculus, g: Scalar, y: Scalar, arguments: tuple[Scalar, ...]
    ) -> tuple[_Share | None, ...]:
        del y
        a, b = arguments

        def share(x: Scalar, other: Scalar) -> Scalar:
            half = c.times(g, 0.5)
            equal = c.of("where", c.is_("eq", x, other), half, c.number(0.0))
            return c.of("where", c.is_(chooses_first, x, other), g, equal)

        return (lambda: share(a, b), lambda: share(b, a))

    return rule


def _where(
    c: _Calculus, g: Scalar, y: Scalar, arguments: tuple[Scalar, ...]
) -> tuple[_Share | None, ...]:
    del y
    condition = arguments[0]
    zero = c.number(0.0)
    return (
        None,
        lambda: c.of("where", condition, g, zero),
        lambda: c.of("where", condition, zero, g),
    )


def _power(
    c: _Calculus, g: Scalar, y: Scalar, arguments: tuple[Scalar, ...]
) -> tuple[_Share | None, ...]:
    x, n = arguments

    def of_base() -> Scalar:
        less = c.of("pow", x, c.of("sub", n, c.number(1.0)))
        slope = c.mul(n, less)
        return c.mul(g, c.of("where", c.is_("eq", n, c.number(0.0)), c.number(0.0), slope))

    return of_base, lambda: c.mul(g, c.mul(y, c.of("log", x)))


_RULES: dict[str, _Rule] = {
    "add": lambda c, g, y, a: (lambda: g, lambda: g),
    "sub": lambda c, g, y, a: (lambda: g, lambda: c.of("neg", g)),
    "mul": lambda c, g, y, a: (lambda: c.mul(g, a[1]), lambda: c.mul(g, a[0])),
    "div": lambda c, g, y, a: (
        lambda: c.of("div", g, a[1]),
        lambda: c.of("neg", c.mul(g, c.of("div", y, a[1]))),
    ),
    "fma": lambda c, g, y, a: (lambda: c.mul(g, a[1]), lambda: c.mul(g, a[0]), lambda: g),
    "pow": _power,
    "where": _where,
    "maximum": _choice("gt"),
    "fmax": _choice("gt"),
    "minimum": _choice("lt"),
    "fmin": _choice("lt"),
    "neg": _unary(lambda c, g, x, y: c.of("neg", g)),
    "abs": _unary(lambda c, g, x, y: c.mul(g, c.of("sign", x))),
    "exp": _unary(lambda c, g, x, y: c.mul(g, y)),
    "exp2": _unary(lambda c, g, x, y: c.times(c.mul(g, y), 0.6931471805599453)),
    "expm1": _unary(lambda c, g, x, y: c.mul(g, c.of("add", y, c.number(1.0)))),
    "log": _unary(lambda c, g, x, y: c.of("div", g, x)),
    "log2": _unary(lambda c, g, x, y: c.of("div", g, c.times(x, 0.6931471805599453))),
    "log10": _unary(lambda c, g, x, y: c.of("div", g, c.times(x, 2.302585092994046))),
    "log1p": _unary(lambda c, g, x, y: c.of("div", g, c.of("add", x, c.number(1.0)))),
    "sqrt": _unary(lambda c, g, x, y: c.of("div", g, c.times(y, 2.0))),
    "rsqrt": _unary(lambda c, g, x, y: c.mul(c.times(g, -0.5), c.mul(y, c.mul(y, y)))),
    "reciprocal": _unary(lambda c, g, x, y: c.of("neg", c.mul(g, c.mul(y, y)))),
    "sin": _unary(lambda c, g, x, y: c.mul(g, c.of("cos", x))),
    "cos": _unary(lambda c, g, x, y: c.of("neg", c.mul(g, c.of("sin", x)))),
    "tan": _unary(lambda c, g, x, y: c.mul(g, c.of("add", c.mul(y, y), c.number(1.0)))),
    "sinh": _unary(lambda c, g, x, y: c.mul(g, c.of("cosh", x))),
    "cosh": _unary(lambda c, g, x, y: c.mul(g, c.of("sinh", x))),
    "tanh": _unary(lambda c, g, x, y: c.mul(g, c.of("sub", c.number(1.0), c.mul(y, y)))),
    "atan": _unary(lambda c, g, x, y: c.of("div", g, c.of("add", c.mul(x, x), c.number(1.0)))),
    "sigmoid": _unary(lambda c, g, x, y: c.mul(g, c.mul(y, c.of("sub", c.number(1.0), y)))),
    "erf": _unary(
        lambda c, g, x, y: c.mul(
            c.times(g, 1.1283791670955126), c.of("exp", c.of("neg", c.mul(x, x)))
        )
    ),
    **{
        name: _unary(lambda c, g, x, y: c.number(0.0))
        for name in ("floor", "ceil", "trunc", "round", "sign")
    },
}
