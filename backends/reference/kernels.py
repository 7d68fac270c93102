"""Run a kernel instruction by instruction on whole tensors: the oracle for generated kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch

from lynx.ir.core import Number
from lynx.ir.dims import Dim
from lynx.ir.dims import evaluate as evaluate_dim
from lynx.ir.errors import InternalError
from lynx.ir.kernel import (
    Apply,
    Buffer,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
    Term,
)
from lynx.ir.types import DType

from .dtypes import torch_dtype

Buffers: TypeAlias = Mapping[str, torch.Tensor] | Sequence[torch.Tensor]


def run_kernel(kernel: Kernel, buffers: Buffers, sizes: Mapping[str, int] | None = None) -> None:
    """Run a kernel on flat tensors, one for each buffer by name or in order, written in place.

    `sizes` are the values of the symbols. An `IndexError` tells the first check that failed;
    `InternalError` that the kernel touches what is no part of a buffer, or writes a place twice.
    """
    if not isinstance(buffers, Mapping):
        names = [buffer.name for buffer in kernel.buffers]
        buffers = dict(zip(names, buffers, strict=True))
    _Interpreter(kernel, buffers, sizes or {}).run()


class _Interpreter:
    """Holds each scalar as a tensor of one dimension an axis, of size 1 where it does not vary."""

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, torch.Tensor], symbols: Mapping[str, int]
    ) -> None:
        self.kernel = kernel
        self.symbols = symbols
        self.sizes = {axis.name: self.dim(axis.size) for axis in kernel.axes}
        self.places = {axis.name: place for place, axis in enumerate(kernel.axes)}
        self.memory = {buffer: self.view(buffer, buffers[buffer.name]) for buffer in kernel.buffers}
        self.values: dict[Scalar, torch.Tensor] = {}

    def run(self) -> None:
        last_uses = _last_uses(self.kernel)
        for instruction in self.kernel.body:
            results = _STEPS[type(instruction)](self, instruction)
            self.values.update(zip(instruction.results, results, strict=True))
            for scalar in last_uses[instruction]:
                del self.values[scalar]

    def dim(self, dim: Dim) -> int:
        return evaluate_dim(dim, self.symbols)

    def view(self, buffer: Buffer, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor that the kernel may touch."""
        extent, dtype = self.dim(buffer.extent), torch_dtype(buffer.dtype)
        if tensor.dim() != 1 or tensor.dtype is not dtype or tensor.numel() < extent:
            found = f"{tensor.dtype} of shape {list(tensor.shape)}"
            message = f"buffer '{buffer.name}' needs {extent} elements of {dtype}, got {found}"
            raise ValueError(message)
        return tensor[:extent]

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of what varies along these axes only."""
        return tuple(size if axis in axes else 1 for axis, size in self.sizes.items())

    def constant(self, number: Number, dtype: DType) -> torch.Tensor:
        """Return a number of one element, converted as torch converts."""
        if isinstance(number, sympy.Expr):
            number = self.dim(number)
        if isinstance(number, int) and not isinstance(number, bool) and not dtype.is_floating:
            number = (number + 2**63) % 2**64 - 2**63
        value = torch.tensor(number, dtype=_wide(number))
        return value.to(torch_dtype(dtype)).reshape((1,) * len(self.sizes))

    def index(self, index: Index) -> torch.Tensor:
        """Return the value of an index, as `i64`."""
        total = self.constant(self.dim(index.offset), DType.I64)
        for term in index.terms:
            total = total + self.term(term)
        return total

    def term(self, term: Term) -> torch.Tensor:
        if isinstance(term.of, str):
            shape = self.shape((term.of,))
            value = torch.arange(self.sizes[term.of]).reshape(shape)
        else:
            value = self.values[term.of].to(torch.int64)
        divisor = self.dim(term.divisor)
        if divisor != 1:
            value = torch.div(value, divisor, rounding_mode="floor")
        if term.modulus is not None:
            value = torch.remainder(value, self.dim(term.modulus))
        return value * self.dim(term.stride)

    def places_in(
        self, instruction: Load | Store
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Size]:
        """Return the flat positions of an access, its mask, and the shape of what is accessed."""
        index = self.index(instruction.index)
        shape = torch.Size(self.shape(instruction.domain))
        mask = None if instruction.mask is None else self.values[instruction.mask]
        if mask is not None:
            mask = mask.expand(shape).reshape(-1)
        index = index.expand(shape).reshape(-1)
        touched = index if mask is None else index[mask]
        extent = self.memory[instruction.buffer].numel()
        if touched.numel() and not (0 <= int(touched.min()) <= int(touched.max()) < extent):
            name, low, high = instruction.buffer.name, int(touched.min()), int(touched.max())
            message = f"touches elements {low} to {high} of {extent} of buffer '{name}'"
            raise InternalError("kernel-out-of-bounds", message, instruction.loc)
        return index, mask, shape

    def load(self, instruction: Load) -> tuple[torch.Tensor, ...]:
        memory = self.memory[instruction.buffer]
        index, mask, shape = self.places_in(instruction)
        if mask is None:
            return (memory[index].reshape(shape),)
        other = self.constant(instruction.other, instruction.buffer.dtype)
        loaded = other.reshape(()).repeat(index.numel())
        loaded[mask] = memory[index[mask]]
        return (loaded.reshape(shape),)

    def store(self, instruction: Store) -> tuple[torch.Tensor, ...]:
        memory = self.memory[instruction.buffer]
        index, mask, shape = self.places_in(instruction)
        value = self.values[instruction.value].expand(shape).reshape(-1)
        if mask is not None:
            index, value = index[mask], value[mask]
        if instruction.combine == "add":
            # On a CPU, and of one dimension, this runs in order.
            memory.index_add_(0, index, value)
            return ()
        if instruction.combine == "last":
            index, value = _last_writes(index, value, memory.numel())
        places = index.sort().values
        if bool((places[1:] == places[:-1]).any()):
            message = f"two points write one element of buffer '{instruction.buffer.name}'"
            raise InternalError("kernel-writes-twice", message, instruction.loc)
        memory[index] = value
        return ()

    def apply(self, instruction: Apply) -> tuple[torch.Tensor, ...]:
        arguments = [self.values[argument] for argument in instruction.arguments]
        return (_FUNCTIONS[instruction.function](*arguments).to(torch_dtype(instruction.dtype)),)

    def reduce(self, instruction: Reduce) -> tuple[torch.Tensor, ...]:
        """Reduce over one last dimension, made of the reduced axes in the order of `over`."""
        x = self.values[instruction.x].expand(self.shape(instruction.domain))
        over = [self.places[axis] for axis in instruction.over]
        kept = [place for place in range(x.dim()) if place not in over]
        count = math.prod(x.shape[place] for place in over)
        rows = x.permute(*kept, *over).reshape(*(x.shape[place] for place in kept), count)
        shape = self.shape(instruction.result_axes())
        results = _COMBINES[instruction.combine](rows)
        types = map(torch_dtype, instruction.result_dtypes())
        return tuple(r.to(t).reshape(shape) for r, t in zip(results, types, strict=True))

    def check(self, instruction: Check) -> tuple[torch.Tensor, ...]:
        if not bool(self.values[instruction.condition].all()):
            raise IndexError(instruction.message)
        return ()

    def number(self, instruction: Constant) -> tuple[torch.Tensor, ...]:
        return (self.constant(instruction.value, instruction.dtype),)

    def position(self, instruction: Position) -> tuple[torch.Tensor, ...]:
        return (self.index(instruction.index).expand(self.shape(instruction.domain)),)

    def convert(self, instruction: Convert) -> tuple[torch.Tensor, ...]:
        return (self.values[instruction.x].to(torch_dtype(instruction.dtype)),)


def _last_writes(
    index: torch.Tensor, value: torch.Tensor, extent: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places that are written, and the last of the values that each gets."""
    order = torch.arange(index.numel())
    last = torch.full((extent,), -1).scatter_reduce_(0, index, order, "amax")
    places = (last >= 0).nonzero().reshape(-1)
    return places, value[last[places]]


_STEPS: dict[type[Instruction], Callable[[_Interpreter, Any], tuple[torch.Tensor, ...]]] = {
    Apply: _Interpreter.apply,
    Check: _Interpreter.check,
    Constant: _Interpreter.number,
    Convert: _Interpreter.convert,
    Load: _Interpreter.load,
    Position: _Interpreter.position,
    Reduce: _Interpreter.reduce,
    Store: _Interpreter.store,
}


def _last_uses(kernel: Kernel) -> dict[Instruction, tuple[Scalar, ...]]:
    needed: set[Scalar] = set()
    found: dict[Instruction, tuple[Scalar, ...]] = {}
    for instruction in reversed(kernel.body):
        touched = dict.fromkeys((*instruction.operands, *instruction.results))
        found[instruction] = tuple(scalar for scalar in touched if scalar not in needed)
        needed.update(touched)
    return found


def _wide(number: bool | float | complex) -> torch.dtype:
    """Return the type in which torch takes a number of Python."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64
    return torch.complex128 if isinstance(number, complex) else torch.float64


def _rounded(mode: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


def _named(*names: str) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """Yield functions that torch has under the same name."""
    return ((name, getattr(torch, name)) for name in names)


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **dict(_named("sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10")),
    **dict(_named("log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")),
    **dict(_named("asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "floor", "ceil", "trunc")),
    **dict(_named("round", "neg", "abs", "sign", "isnan", "isinf", "signbit", "div", "pow")),
    **dict(_named("atan2", "hypot", "copysign", "fmax", "fmin", "nextafter", "add", "sub", "mul")),
    **dict(_named("remainder", "fmod", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")),
    **dict(_named("where")),
    # torch's own kernels round this once where the processor can.
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "floor_div": _rounded("floor"),
    "trunc_div": _rounded("trunc"),
    "not": torch.bitwise_not,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}

_Rows: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def _extreme(is_maximum: bool) -> _Rows:
    """Return the combination of `max` or `min`, with the position of the result."""

    def combine(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if rows.shape[-1] == 0:
            value = torch.full(rows.shape[:-1], _identity(rows.dtype, is_maximum), dtype=rows.dtype)
            return value, torch.zeros(rows.shape[:-1], dtype=torch.int64)
        found = torch.max(rows, -1) if is_maximum else torch.min(rows, -1)
        return found.values, found.indices

    return combine


def _identity(dtype: torch.dtype, is_maximum: bool) -> Any:
    if dtype is torch.bool:
        return not is_maximum
    if dtype.is_floating_point:
        return -math.inf if is_maximum else math.inf
    return torch.iinfo(dtype).min if is_maximum else torch.iinfo(dtype).max


def _only_value(combine: _Rows) -> _Rows:
    return lambda rows: combine(rows)[:1]


def _welford(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute in double precision, as torch's variances do."""
    if rows.shape[-1] == 0:
        zero = torch.zeros(rows.shape[:-1], dtype=rows.dtype)
        return zero, zero
    wide = rows.double()
    mean = wide.mean(-1)
    return mean, (wide - mean.unsqueeze(-1)).square().sum(-1)


def _softmax(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    largest = _MAXIMUM(rows)[0]
    return largest, torch.exp(rows - largest.unsqueeze(-1)).sum(-1)


_MAXIMUM, _MINIMUM = _extreme(True), _extreme(False)
_COMBINES: dict[str, _Rows] = {
    "sum": lambda rows: (rows.sum(-1, dtype=rows.dtype),),
    "prod": lambda rows: (rows.prod(-1, dtype=rows.dtype),),
    "max": _only_value(_MAXIMUM),
    "min": _only_value(_MINIMUM),
    "any": lambda rows: (rows.any(-1),),
    "all": lambda rows: (rows.all(-1),),
    "argmax": _MAXIMUM,
    "argmin": _MINIMUM,
    "welford": _welford,
    "softmax": _softmax,
}
