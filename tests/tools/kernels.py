"""Random kernels with matching buffers, and a comparison with the interpreter, for back ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lynx.backends.reference import run_kernel
from lynx.ir import DType, Kernel, print_kernel, symbol
from lynx.ir.dims import evaluate, simplify
from lynx.ir.kernel import Buffer, Index, Term
from tests.tools import kernel_nodes as nodes
from tests.tools.kernel_nodes import Node
from tests.tools.kernel_parts import DTYPES, MOST_POINTS, REDUCTIONS, Options, Parts

__all__ = ["DTYPES", "REDUCTIONS", "KernelCase", "Options", "compare", "kernel_cases"]


@dataclass(frozen=True)
class KernelCase:
    """A kernel, the values of its symbols, contents of its buffers, and allowed errors by buffer.

    An error is relative and absolute; (0, 0) asks for equal numbers.
    """

    kernel: Kernel
    symbols: dict[str, int]
    buffers: dict[str, torch.Tensor]
    tolerances: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = {name: tensor.tolist()[:40] for name, tensor in self.buffers.items()}
        return f"\n{print_kernel(self.kernel)}{self.symbols}\n{shown}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def copies(self) -> dict[str, torch.Tensor]:
        """Return fresh buffers to run on."""
        return {name: tensor.clone() for name, tensor in self.buffers.items()}


Run = Callable[[Kernel, dict[str, torch.Tensor], Mapping[str, int]], None]
"""Runs a kernel on buffers in place; raises `IndexError` when a check fails, as `run_kernel`."""


def compare(case: KernelCase, run: Run) -> None:
    """Assert that a way of running kernels agrees with the interpreter."""
    expected, actual = case.copies(), case.copies()
    try:
        run_kernel(case.kernel, expected, case.symbols)
    except IndexError as error:
        try:
            run(case.kernel, actual, case.symbols)
        except IndexError as found:
            if str(found) == str(error):
                return
        raise AssertionError(f"expected the check to fail: {error}") from error
    run(case.kernel, actual, case.symbols)
    for name, wanted in expected.items():
        relative, absolute = case.tolerances.get(name, (0.0, 0.0))
        torch.testing.assert_close(
            actual[name],
            wanted,
            rtol=relative,
            atol=absolute,
            equal_nan=True,
            msg=lambda text, name=name: f"buffer {name}: {text}",
        )


def kernel_cases(options: Options | None = None) -> SearchStrategy[KernelCase]:
    """Return kernels of a few loads, functions, reductions and stores, over up to three axes.

    They have broadcast, transposed, strided, reversed and divided index maps, masked and indirect
    loads, sums into places that an index tells, and symbolic sizes.
    """
    return st.composite(lambda draw: _Drawing(draw, options or Options()).case())()


class _Drawing(Parts):
    """Builds one kernel."""

    def case(self) -> KernelCase:
        self.enter_axes()
        steps = [self.load, self.load, self.load, self.masked_load, self.indirect_load,
                 self.position, self.constant, self.unary, self.unary, self.binary, self.binary,
                 self.binary, self.compare, self.choose, self.convert, self.convert,
                 self.reduce, self.reduce]  # fmt: skip
        self.load()
        for _ in range(self.pick(range(1, 9))):
            self.pick(steps)()
        for _ in range(self.pick((1, 1, 2, 3))):
            self.store(self.pick(self.pool[-4:]))
        if self.options.scatters and self.chance(4):
            self.scatter(self.pick(self.pool))
        kernel = self.builder.build("random")
        return KernelCase(kernel, self.symbols, self.data, self.tolerances)

    def add(self, node: Node) -> None:
        if node.bound < 1e12 or not node.dtype.is_floating or node.is_exact:
            self.pool.append(node)

    def load(self) -> None:
        dtype = self.pick((*self.options.dtypes[:1] * 4, *self.options.dtypes))
        index, extent = self.index(self.some_axes())
        special = dtype.is_floating and self.options.specials and self.chance(3)
        written = self.options.in_place and self.chance(2)
        buffer = self.buffer(dtype, extent, special=special, is_written=written)
        self.loaded(buffer, index, special)

    def loaded(self, buffer: Buffer, index: Index, special: bool) -> None:
        """Load, and convert low precision as lowering does."""
        node = Node(self.builder.load(buffer, index), 9.0, special)
        self.loads.append((buffer, index, node))
        self.add(node)
        if node.dtype.is_low_precision:
            self.add(Node(self.builder.convert(node.scalar, DType.F32), 9.0, special))

    def masked_load(self) -> None:
        """Load with an offset, only where that is inside of the buffer."""
        dtype = self.pick(self.options.dtypes)
        index, extent = self.index(self.some_axes())
        shift = self.pick((-3, 1, -1, 100))
        index = Index(index.terms, simplify(index.offset + shift))
        position = self.builder.position(index)
        low = self.builder.apply("ge", position, self.number(0), dtype=DType.BOOL)
        high = self.builder.apply("lt", position, self.number(extent), dtype=DType.BOOL)
        mask = self.builder.apply("and", low, high, dtype=DType.BOOL)
        buffer = self.buffer(dtype, extent)
        other = self.pick((0, 1)) if not dtype.is_floating else self.pick((0.0, -0.0, 0.5))
        self.add(Node(self.builder.load(buffer, index, mask, other), 9.0))

    def number(self, value: Any) -> Any:
        return self.builder.constant(value, DType.I64)

    def looked_up(self, rows: int) -> Any:
        """Return a position below `rows`, read from memory and perhaps checked."""
        axes = tuple(axis for axis in self.some_axes())
        index, extent = self.index(axes)
        dtype = self.pick((DType.I64, DType.I32))
        fails = self.options.checks and self.chance(8)
        buffer = self.buffer(dtype, extent, bounds=(-1 if fails else 0, rows))
        found = self.builder.convert(self.builder.load(buffer, index), DType.I64)
        if not (fails or (self.options.checks and self.chance(3))):
            return found
        low = self.builder.apply("ge", found, self.number(0), dtype=DType.BOOL)
        high = self.builder.apply("lt", found, self.number(rows), dtype=DType.BOOL)
        inside = self.builder.apply("and", low, high, dtype=DType.BOOL)
        self.builder.check(inside, "index out of range")
        return self.builder.apply("where", inside, found, self.number(0), dtype=DType.I64)

    def indirect_load(self) -> None:
        rows = self.pick((3, 1, 20))
        found = self.looked_up(rows)
        index, extent = self.index(self.some_axes())
        buffer = self.buffer(self.pick(self.options.dtypes), simplify(extent * rows))
        terms = (*index.terms, Term(found, extent))
        self.loaded(buffer, Index(terms, index.offset), False)

    def position(self) -> None:
        index, extent = self.index(self.some_axes())
        bound = float(evaluate(extent, self.symbols)) + 3
        self.add(Node(self.builder.position(index), bound))

    def constant(self) -> None:
        dtype = self.pick([d for d in self.options.dtypes if not d.is_low_precision])
        if dtype.is_floating:
            value = self.pick((0.5, 1, 0.0, -0.0, 3.0, -2.5, 0.1))
        elif dtype is DType.BOOL:
            value = self.pick((True, False))
        else:
            symbols = [symbol(name) for name in self.symbols]
            value = self.pick((1, 0, 2, 5, *symbols, *(() if dtype is DType.U8 else (-1, -3))))
        self.add(Node(self.builder.constant(value, dtype), 64.0))

    def of(self, accept: Callable[[Node], bool]) -> Node | None:
        """Return a scalar of the pool that is accepted, if there is one."""
        found = [node for node in self.pool if accept(node)]
        return self.pick(found[::-1]) if found else None

    def unary(self) -> None:
        x = self.of(lambda node: node.is_number or node.dtype is DType.BOOL)
        if x is None:
            return
        apply = self.builder.apply
        if x.dtype is DType.BOOL:
            self.add(Node(apply("not", x.scalar, dtype=DType.BOOL), 1.0))
        elif x.dtype.is_integer:
            name = self.pick(("neg", "abs", "not", "sign"))
            self.add(self.whole(apply(name, x.scalar, dtype=x.dtype), x.bound + 1))
        elif x.is_exact and not self.chance(3):
            name = self.pick(self.options.functions)
            self.add(nodes.approximate(name, x, apply(name, x.scalar, dtype=x.dtype)))
        elif x.is_exact and self.chance(2):
            name = self.pick((*nodes.ROUNDING, "isnan", "isinf", "signbit"))
            is_predicate = name in ("isnan", "isinf", "signbit")
            dtype = DType.BOOL if is_predicate else x.dtype
            self.add(Node(apply(name, x.scalar, dtype=dtype), x.bound + 1, x.special))
        else:
            scalar = apply(self.pick(nodes.SIMPLE), x.scalar, dtype=x.dtype)
            self.add(Node(scalar, x.bound, x.special, x.relative, x.absolute))

    def whole(self, scalar: Any, bound: float) -> Node:
        """Return the node of an integer, which wraps around."""
        most = nodes.limit(scalar.dtype)
        return Node(scalar, bound if bound <= most else 2 * most)

    def partner(self, x: Node) -> Node:
        """Return a scalar of the type of another one."""
        found = self.of(lambda node: node.dtype is x.dtype)
        assert found is not None
        return found

    def binary(self) -> None:
        x = self.of(lambda node: node.is_number)
        if x is None:
            return
        y = self.partner(x)
        if x.dtype.is_integer:
            self.binary_of_integers(x, y)
            return
        names = ["add", "sub", "maximum", "minimum"]
        if (x.is_exact or not y.special) and (y.is_exact or not x.special):
            names += ["mul", "mul"]
        if x.is_exact and y.is_exact:
            names += ["div", "fmax", "fmin", "copysign", "fmod", "remainder", "atan2", "hypot"]
        name = self.pick(names)
        result = self.builder.apply(name, x.scalar, y.scalar, dtype=x.dtype)
        if name in ("add", "sub"):
            self.add(nodes.added(x, y, result))
        elif name == "mul":
            self.add(nodes.multiplied(x, y, result))
        elif name in ("maximum", "minimum", "fmax", "fmin", "copysign"):
            error = max(x.error, y.error)
            special = x.special or y.special
            self.add(Node(result, max(x.bound, y.bound), special, 0.0, error))
        else:
            # Division is often by a small number, so that an error would become large.
            epsilon = nodes.EPSILON[x.dtype]
            bound = 2 * x.bound + y.bound if name in ("hypot", "fmod", "remainder") else math.inf
            error = 0.0 if name in ("fmod", "remainder") else 4 * nodes.ULPS * epsilon
            tiny = 0.0 if error == 0 else nodes.TINY[x.dtype]
            self.add(Node(result, 4.0 if name == "atan2" else bound, True, error, tiny))

    def binary_of_integers(self, x: Node, y: Node) -> None:
        apply = self.builder.apply
        names = ["add", "sub", "mul", "maximum", "minimum", "and", "or", "xor"]
        if y.bound < 9 and x.bound < 100:
            names += ["shift_left", "shift_right"]
        if x.bound < 1e6 and y.bound < 1e6 and nodes.limit(x.dtype) > 1e6:
            names += ["floor_div", "trunc_div", "remainder", "fmod"]
        name = self.pick(names)
        divisor = y.scalar
        if name in ("floor_div", "trunc_div", "remainder", "fmod"):
            zero, one = (self.builder.constant(n, x.dtype) for n in (0, 1))
            is_zero = apply("eq", y.scalar, zero, dtype=DType.BOOL)
            divisor = apply("where", is_zero, one, y.scalar, dtype=x.dtype)
        bound = {"mul": x.bound * y.bound, "shift_left": x.bound * 1e3}.get(
            name, 2 * (x.bound + y.bound) + 2
        )
        self.add(self.whole(apply(name, x.scalar, divisor, dtype=x.dtype), bound))

    def compare(self) -> None:
        x = self.of(lambda n: n.is_exact and (n.is_number or n.dtype is DType.BOOL))
        if x is None:
            return
        y = self.of(lambda n: n.is_exact and n.dtype is x.dtype)
        assert y is not None
        name = self.pick(("lt", "le", "gt", "ge", "eq", "ne"))
        self.add(Node(self.builder.apply(name, x.scalar, y.scalar, dtype=DType.BOOL), 1.0))

    def choose(self) -> None:
        condition = self.of(lambda node: node.dtype is DType.BOOL)
        if condition is None:
            return
        x = self.pick(self.pool)
        y = self.partner(x)
        result = self.builder.apply("where", condition.scalar, x.scalar, y.scalar, dtype=x.dtype)
        error = max(x.absolute, y.absolute)
        relative = max(x.relative, y.relative)
        bound = max(x.bound, y.bound)
        self.add(Node(result, bound, x.special or y.special, relative, error))

    def convert(self) -> None:
        x = self.pick(self.pool)
        dtype = self.pick(self.options.dtypes)
        if dtype is x.dtype:
            return
        if x.dtype.is_floating and dtype.is_floating:
            if x.is_exact or math.isfinite(x.bound):
                self.add(nodes.rounded(x, self.builder.convert(x.scalar, dtype)))
        elif not x.is_exact or x.special or not x.bound < 1e6:
            return
        elif dtype is not DType.U8 or not x.dtype.is_floating:
            result = self.builder.convert(x.scalar, dtype)
            self.add(self.whole(result, x.bound) if dtype.is_integer else
                     Node(result, 1.0 if dtype is DType.BOOL else x.bound))  # fmt: skip

    def reduce(self) -> None:
        x = self.of(lambda node: node.is_number or node.dtype is DType.BOOL)
        axes = tuple(self.builder.axes)
        over = tuple(axis for axis in axes if self.chance(2)) or (self.pick(axes),)
        count = self.count(over)
        if x is None:
            return
        combines = [c for c in self.options.reductions if self.can_reduce(c, x, count)]
        if not combines:
            return
        combine = self.pick(combines)
        if self.chance(2):
            over = tuple(self.draw(st.permutations(over)))
        self.has_reductions = True
        results = self.builder.reduce(combine, x.scalar, over)
        for node in _reduced(combine, x, count, results):
            self.add(node)

    def can_reduce(self, combine: str, x: Node, count: int) -> bool:
        if combine in ("any", "all"):
            return x.dtype is DType.BOOL
        if combine in ("max", "min"):
            return True
        if combine in ("argmax", "argmin"):
            return x.is_exact and count > 0
        if x.dtype is DType.BOOL:
            return False
        if combine == "sum":
            return x.dtype.is_integer or x.bound < 1e9
        if combine == "prod":
            return x.dtype.is_integer or (x.is_exact and not x.special and count <= 8)
        plain = x.is_exact and x.bound < 100 and count > 0 and x.dtype.is_floating
        return plain and (combine == "softmax" or not x.special)

    # stores

    def store(self, node: Node) -> None:
        if self.options.in_place and not self.has_reductions and self.store_over(node):
            return
        index, extent = self.index(node.scalar.axes, injective=True)
        buffer = self.buffer(node.dtype, extent, is_written=True)
        self.builder.store(buffer, index, node.scalar)
        self.tolerances[buffer.name] = (node.relative, node.absolute)

    def store_over(self, node: Node) -> bool:
        """Write over a buffer that is read once, at the place that is read."""
        for buffer, index, loaded in self.loads:
            terms = {term.of: term for term in index.terms}
            is_plain = len(terms) == len(index.terms) and all(
                isinstance(t.of, str) and t.divisor == 1 and t.modulus is None for t in index.terms
            )
            if not (is_plain and buffer.is_written and node.dtype is buffer.dtype):
                continue
            if node.scalar.axes != loaded.scalar.axes or buffer.name in self.tolerances:
                continue
            self.builder.store(buffer, index, node.scalar)
            self.tolerances[buffer.name] = (node.relative, node.absolute)
            return True
        return False

    def scatter(self, node: Node) -> None:
        """Add to places that are read from memory, or let the last that is written there stay."""
        if not (node.is_number and node.bound < 1e6):
            return
        rows = self.pick((3, 1))
        found = self.looked_up(rows)
        buffer = self.buffer(node.dtype, rows, is_written=True)
        combine = self.pick(("add", "last"))
        self.builder.store(buffer, Index((Term(found),)), node.scalar, combine=combine)
        if combine == "last":
            self.tolerances[buffer.name] = (node.relative, node.absolute)
            return
        count = MOST_POINTS * max(1, math.prod(max(s, 1) for s in self.sizes.values()) // 16)
        total = (
            nodes.summed(node, min(count, 10**5), node.scalar) if node.dtype.is_floating else node
        )
        self.tolerances[buffer.name] = (0.0, total.absolute)


def _power(base: float, exponent: int) -> float:
    """Return a power, infinity where it is too large for a float."""
    return math.exp(min(exponent * math.log(base), 709.0)) if base > 0 else float(exponent == 0)


def _reduced(combine: str, x: Node, count: int, results: tuple[Any, ...]) -> list[Node]:
    """Return what is known of the results of a reduction."""
    first = results[0]
    if combine in ("max", "min"):
        special = x.special or (x.dtype.is_floating and count == 0)
        bound = x.bound if count else nodes.limit(x.dtype)
        return [Node(first, bound, special, x.relative, x.absolute)]
    if combine in ("any", "all"):
        return [Node(first, 1.0)]
    if combine in ("argmax", "argmin"):
        return [Node(first, x.bound, x.special), Node(results[1], float(count))]
    if x.dtype.is_integer:
        bound = x.bound * count if combine == "sum" else _power(x.bound, count)
        return [Node(first, bound if bound < nodes.limit(x.dtype) else 2.0**64)]
    epsilon = nodes.EPSILON[x.dtype]
    if combine == "sum":
        return [nodes.summed(x, count, first)]
    if combine == "prod":
        bound = _power(max(x.bound, 1.0), count)
        return [Node(first, bound, False, 2 * count * epsilon, nodes.TINY[x.dtype])]
    if combine == "welford":
        error = 2 * count * epsilon * (x.bound + 1)
        squares = Node(results[1], 4 * count * x.bound**2, False, 0.0, 9 * count * error * x.bound)
        return [Node(first, x.bound, False, 0.0, error), squares]
    error = count * epsilon * nodes.ULPS * (x.bound + 1)
    return [Node(first, x.bound, x.special), Node(results[1], float(count), x.special, 0.0, error)]
