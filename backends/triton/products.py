"""Fused products of matrices: a tiled kernel, or the library between kernels, whichever is faster.

Both write the same tensors, so what is measured on one machine never changes a program.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lynx.backends.reference import call_of
from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, contiguous_strides, evaluate, free_symbols
from lynx.ir.kernel import Kernel
from lynx.ir.native import FusedLayout
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.ops.linear import AddProduct, MatrixProduct
from lynx.ir.types import TensorType
from lynx.passes.fusion import kernel_of

from .autotune import Make, Tuner, autotune_product
from .dtypes import torch_type
from .launch import Launchable
from .module import PrintedModule, print_module

Strides = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class Operand:
    """A value in memory: the name of the buffer that holds it, its type and its strides."""

    buffer: str
    value: Value
    strides: Strides

    def tensor(self, memory: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
        """Return the value's tensor; scratch memory that does not exist yet is allocated."""
        shape, strides = (
            [evaluate(dim, sizes) for dim in dims] for dims in (self.value.shape, self.strides)
        )
        known = memory.get(self.buffer)
        if known is not None:
            return known.data.as_strided(shape, strides)
        type_ = self.value.tensor_type
        return torch.empty_strided(
            shape, strides, dtype=torch_type(type_.dtype), device=type_.device
        )


@dataclass(frozen=True, eq=False)
class Part:
    """A kernel of its own before or after the product, over these buffers."""

    kernel: Kernel
    printed: PrintedModule
    buffers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LibraryProduct:
    """A product that the library computes, with the kernels that make operands and use the result.

    `scratch` are operands and a result that lie in memory of the call, under names of their own.
    """

    op: Op
    operands: tuple[Operand, ...]
    result: Operand
    scratch: tuple[Operand, ...]
    before: tuple[Part, ...]
    after: Part | None
    symbols: tuple[str, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All kernels, in order."""
        return self.before if self.after is None else (*self.before, self.after)

    @property
    def source(self) -> str:
        """The text of all kernels."""
        return "\n".join(part.printed.text for part in self.parts)

    def multiply(self, memory: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Compute the product by the library."""
        tensors = {one.value: one.tensor(memory, sizes) for one in self.operands}
        call = call_of(self.op)
        assert call.out is not None, self.op
        arguments = [tensors[item] if isinstance(item, Value) else item for item in call.arguments]
        call.out(*arguments, **call.keywords, out=self.result.tensor(memory, sizes))


class LibraryLaunch:
    """Launches the parts of a product around the call of the library."""

    def __init__(self, product: LibraryProduct, make: Make) -> None:
        self.product = product
        self.parts = [(part, make(part.kernel, part.printed)) for part in product.parts]

    def launch(self, memory: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Run on named memory."""
        product = self.product
        held = dict(memory)
        for one in product.scratch:
            held[one.buffer] = one.tensor({}, sizes)
        for place, (part, launchable) in enumerate(self.parts):
            if place == len(product.before):
                product.multiply(held, sizes)
            values = [sizes[symbol] for symbol in part.kernel.symbols]
            launchable.launch([held[name] for name in part.buffers], values)
        if product.after is None:
            product.multiply(held, sizes)


@dataclass(eq=False)
class ProductKernel:
    """Launches a fused product: by the library, or as a tiled kernel that measured faster.

    Without a `tuner` it is the library. `symbols` are those whose values come with the tensors.
    """

    kernel: Kernel
    product: LibraryProduct
    make: Make
    tuner: Tuner | None = None
    allow_tf32: bool = False
    chosen: dict[tuple[int, ...], Launchable | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.library = LibraryLaunch(self.product, self.make)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the kernel and of the layouts around it."""
        return self.product.symbols

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Launch on these tensors, in the order of the kernel's buffers."""
        sizes = dict(zip(self.symbols, values, strict=True))
        tiled = None if self.tuner is None else self._tiled(tensors, sizes)
        if tiled is not None:
            tiled.launch(tensors, [sizes[symbol] for symbol in self.kernel.symbols])
        else:
            self._by_library(tensors, sizes)

    def _by_library(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
        names = (buffer.name for buffer in self.kernel.buffers)
        self.library.launch(dict(zip(names, tensors, strict=True)), sizes)

    def _tiled(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]
    ) -> Launchable | None:
        """Return the tiled kernel for sizes of this magnitude, None if the library is faster."""
        key = tuple(size.bit_length() for size in sizes.values())
        with self.lock:
            if key not in self.chosen:
                found = autotune_product(
                    self.kernel,
                    tensors,
                    sizes,
                    lambda copies: self._by_library(copies, sizes),
                    self.tuner,
                    allow_tf32=self.allow_tf32,
                )
                self.chosen[key] = None if found is None else self.make(self.kernel, found)
            return self.chosen[key]


def library_product(
    layout: FusedLayout, kernel: Kernel, *, is_deterministic: bool = False
) -> LibraryProduct:
    """Return how the library computes a fused product.

    `CompileError` where Triton has no form of what lies around it.
    """
    return _Splitter(layout, kernel, is_deterministic).split()


class _Splitter:
    """Cuts the region of a fused product before and after the product."""

    def __init__(self, layout: FusedLayout, kernel: Kernel, is_deterministic: bool) -> None:
        self.layout = layout
        self.kernel = kernel
        self.is_deterministic = is_deterministic
        self.region = layout.op.body
        self.places = {parameter: n for n, parameter in enumerate(self.region.parameters)}
        self.scratch: list[Operand] = []
        (self.product,) = (
            op for op in self.region.ops if isinstance(op, MatrixProduct | AddProduct)
        )

    def split(self) -> LibraryProduct:
        before: list[Part] = []
        operands = []
        for value in dict.fromkeys(self.product.operands):
            if value not in self.places:
                before.append(self._part((value,), (self._new(value),)))
            operands.append(self._operand(value))
        out = self.product.results[0]
        after = None
        if self.region.results == (out,):
            result = Operand(self._result_name(0), out, self.layout.results[0])
        else:
            result = self._new(out)
            names = range(len(self.region.results))
            results = [
                Operand(self._result_name(n), self.region.results[n], self.layout.results[n])
                for n in names
            ]
            after = self._part(self.region.results, tuple(results), after=out)
        dims = [dim for one in (*operands, result) for dim in (*one.value.shape, *one.strides)]
        parts = [*before, *([] if after is None else [after])]
        symbols = {name for part in parts for name in part.kernel.symbols}
        symbols.update(free_symbols(dims), self.kernel.symbols)
        return LibraryProduct(
            self.product, tuple(operands), result, tuple(self.scratch), tuple(before), after,
            tuple(sorted(symbols)),
        )  # fmt: skip

    def _new(self, value: Value) -> Operand:
        """Return scratch memory for a value, row-major."""
        known = next((one for one in self.scratch if one.value is value), None)
        if known is None:
            name = f"scratch{len(self.scratch)}"
            known = Operand(name, value, contiguous_strides(value.shape))
            self.scratch.append(known)
        return known

    def _operand(self, value: Value) -> Operand:
        if value not in self.places:
            return self._new(value)
        place = self.places[value]
        strides = self.layout.inputs[place]
        assert strides is not None, value
        return Operand(f"x{place}", value, strides)

    def _result_name(self, index: int) -> str:
        over = self.layout.in_place.get(index)
        return f"y{index}" if over is None else f"x{over}"

    def _part(
        self, results: tuple[Value, ...], outs: tuple[Operand, ...], after: Value | None = None
    ) -> Part:
        """Return the kernel that makes values, of the result of the product if that is given."""
        ops, parameters = self._slice(results, after)
        given: dict[Value, Value] = {}
        if after is not None:
            given[after] = Value(after.type, name="product")
        made = []
        for op in ops:
            new = op.replace_operands(given)
            given.update(zip(op.results, new.results, strict=True))
            made.append(new)
        known = [*parameters, *([after] if after is not None else [])]
        region = Region(
            tuple(given.get(value, value) for value in known),
            tuple(made),
            tuple(given.get(value, value) for value in results),
        )
        inputs = tuple(
            self.layout.op.inputs[self.places[v]] if v in self.places else Value(v.type)
            for v in known
        )
        strides = [
            None if not isinstance(v.type, TensorType) else self._operand(v).strides for v in known
        ]
        names = {f"x{n}": self._buffer(value) for n, value in enumerate(known)}
        names |= {f"y{n}": out.buffer for n, out in enumerate(outs)}
        in_place = {
            n: known.index(self.region.parameters[over])
            for n, over in self.layout.in_place.items()
            if after is not None and self.region.parameters[over] in known
        }
        fused = Fused(inputs, region, loc=self.layout.op.loc)
        kernel = kernel_of(fused, strides, [out.strides for out in outs], in_place)
        printed = print_module(kernel, is_deterministic=self.is_deterministic)
        return Part(kernel, printed, tuple(names[buffer.name] for buffer in kernel.buffers))

    def _buffer(self, value: Value) -> str:
        return self._operand(value).buffer if isinstance(value.type, TensorType) else ""

    def _slice(
        self, results: tuple[Value, ...], after: Value | None
    ) -> tuple[list[Op], list[Value]]:
        """Return the ops that lead to values, in order, and the parameters that they read."""
        needed = set(results)
        ops: list[Op] = []
        for op in reversed(self.region.ops):
            if op is self.product and after is not None:
                continue
            if not needed.isdisjoint(op.results):
                ops.append(op)
                needed.update(op.operands)
        return ops[::-1], [p for p in self.region.parameters if p in needed]
