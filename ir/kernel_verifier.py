"""Check the invariants of a kernel, which every code generator may rely on.

1.  Axes and buffers have names of letters, digits and `_` (`bad-name`), each its own
    (`defined-twice`); no axis is called like a symbol (`axis-is-symbol`). No size and no extent is
    negative (`negative-size`).
2.  Scalars are defined by an earlier instruction of the kernel (`undefined-scalar`), each
    instruction occurs once (`defined-twice`), and buffers and axes are the kernel's own
    (`unknown-buffer`, `foreign-axis`).
3.  The domain of an instruction is that of its parts, in the order of the axes (`bad-domain`).
4.  No number is complex (`bad-constant`).
5.  A scalar in an index is an integer; divisors and moduli are positive (`bad-position`).
6.  A function exists and has its number of arguments (`bad-function`). These have one type, of a
    category that it accepts, never of low precision except for what `where` chooses; the result has
    that type, or is `bool` for a predicate (`function-type`).
7.  A reduction is over each axis once (`bad-reduction`), and of a type that it can combine: `any`
    and `all` truth values, `sum` and `prod` numbers, `welford` and `softmax` floating numbers, the
    others all; never one of low precision (`reduction-type`).
8.  A mask and what is checked are truth values (`mask-type`).
9.  A buffer that is stored to is declared as written (`read-only`), and gets values of its own type
    (`store-type`), which are numbers if they are added; how they combine is known (`bad-store`).
10. An access without a mask lies in its buffer, as far as integers tell (`outside-buffer`).
11. No two points of a store that sets values write to one place, unless it has a mask, as far as
    integers tell (`written-twice`).
12. What is stored to a buffer is not loaded from it at a shifted place (`shifted-load`).

The first broken invariant is reported, with the instruction and the place in the user's model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from .dims import Dim, difference
from .errors import CompileError
from .index_range import is_injective, reach
from .kernel import (
    STORES,
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
)
from .kernel_functions import FUNCTIONS
from .kernel_printer import KernelPrinter
from .types import DType

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def verify_kernel(kernel: Kernel) -> None:
    """Raise `CompileError` at the first broken invariant."""
    _KernelVerifier(kernel).run()


class _KernelVerifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes = kernel.sizes
        self.buffers = set(kernel.buffers)
        self.defined: set[Scalar] = set()
        self.seen: set[Instruction] = set()
        self.stores: dict[Buffer, list[Store]] = {}
        self.loads: dict[Buffer, list[Load]] = {}

    def run(self) -> None:
        self.check_names()
        for instruction in self.kernel.body:
            self.check_operands(instruction)
            self.check_domain(instruction)
            _CHECKS[type(instruction)](self, instruction)
            self.seen.add(instruction)
            self.defined.update(instruction.results)
        for buffer, stores in self.stores.items():
            for load in self.loads.get(buffer, ()):
                self.check_shift(load, stores)

    def fail(self, code: str, message: str, instruction: Instruction | None = None) -> CompileError:
        if instruction is None:
            return CompileError(code, f"kernel '{self.kernel.name}': {message}")
        printer = KernelPrinter(self.kernel, locations=False)
        for earlier in self.kernel.body:
            if earlier is instruction:
                break
            printer.instruction(earlier)
        line = printer.instruction(instruction)
        return CompileError(code, f"{message}, in '{line}'", instruction.loc)

    def check_names(self) -> None:
        kernel = self.kernel
        for what, names in (
            ("axis", [axis.name for axis in kernel.axes]),
            ("buffer", [buffer.name for buffer in kernel.buffers]),
        ):
            known: set[str] = set()
            for name in names:
                if not _NAME.fullmatch(name):
                    raise self.fail("bad-name", f"{what} '{name}' has no plain name")
                if name in known:
                    raise self.fail("defined-twice", f"there are two of {what} '{name}'")
                known.add(name)
        symbols = set(kernel.symbols)
        for axis in kernel.axes:
            if axis.name in symbols:
                message = f"axis '{axis.name}' is called like a symbol"
                raise self.fail("axis-is-symbol", message)
            self.check_size(f"axis '{axis.name}'", axis.size)
        for buffer in kernel.buffers:
            self.check_size(f"buffer '{buffer.name}'", buffer.extent)

    def check_size(self, what: str, size: Dim) -> None:
        if isinstance(size, int) and size < 0:
            raise self.fail("negative-size", f"{what} has the negative size {size}")

    def check_operands(self, instruction: Instruction) -> None:
        if instruction in self.seen:
            raise self.fail("defined-twice", "the instruction occurs twice", instruction)
        for scalar in instruction.operands:
            if scalar not in self.defined:
                raise self.fail("undefined-scalar", "uses what is not defined", instruction)
        if isinstance(instruction, Load | Store) and instruction.buffer not in self.buffers:
            name = instruction.buffer.name
            raise self.fail("unknown-buffer", f"'{name}' is no buffer of the kernel", instruction)

    def check_domain(self, instruction: Instruction) -> None:
        """Check axes, and that the domain is the union of those of the parts."""
        wanted: set[str] = set()
        index = getattr(instruction, "index", None)
        if isinstance(index, Index):
            wanted.update(term.of for term in index.terms if isinstance(term.of, str))
            self.check_index(instruction, index)
        if isinstance(instruction, Reduce):
            wanted.update(instruction.over)
        for scalar in instruction.operands:
            wanted.update(scalar.axes)
        for name in sorted(wanted):
            if name not in self.sizes:
                raise self.fail("foreign-axis", f"'{name}' is no axis of the kernel", instruction)
        domain = tuple(axis for axis in self.sizes if axis in wanted)
        if instruction.domain != domain:
            message = f"has the domain {_list(instruction.domain)}, its parts have {_list(domain)}"
            raise self.fail("bad-domain", message, instruction)

    def check_index(self, instruction: Instruction, index: Index) -> None:
        for scalar in index.scalars:
            if not scalar.dtype.is_integer:
                message = f"an index depends on a scalar of type {scalar.dtype}"
                raise self.fail("bad-position", message, instruction)
        for term in index.terms:
            for part in (term.divisor, term.modulus):
                if isinstance(part, int) and part < 1:
                    message = f"an index divides by {part}, which is not positive"
                    raise self.fail("bad-position", message, instruction)

    def check_constant(self, instruction: Constant) -> None:
        if isinstance(instruction.value, complex) or instruction.dtype.is_complex:
            raise self.fail("bad-constant", "kernels hold no complex numbers", instruction)

    def check_apply(self, instruction: Apply) -> None:
        function = FUNCTIONS.get(instruction.function)
        if function is None:
            message = f"there is no function '{instruction.function}'"
            raise self.fail("bad-function", message, instruction)
        if len(instruction.arguments) != function.arity:
            message = f"'{instruction.function}' takes {function.arity} arguments"
            found = f"{message}, got {len(instruction.arguments)}"
            raise self.fail("bad-function", found, instruction)
        chooses = instruction.function == "where"
        types = [argument.dtype for argument in instruction.arguments]
        if chooses:
            self.check_truth("what 'where' depends on", instruction.arguments[0], instruction)
            types = types[1:]
        if any(dtype is not types[0] for dtype in types):
            raise self.fail("function-type", f"mixes {_list(types)}", instruction)
        if not (chooses or _category(types[0]) in function.accepts):
            message = f"'{instruction.function}' does not take {types[0]}"
            raise self.fail("function-type", message, instruction)
        wanted = DType.BOOL if function.is_predicate else types[0]
        if instruction.dtype is not wanted:
            message = f"'{instruction.function}' gives {wanted}, not {instruction.dtype}"
            raise self.fail("function-type", message, instruction)

    def check_reduce(self, instruction: Reduce) -> None:
        combine, over = instruction.combine, instruction.over
        if len(set(over)) != len(over):
            raise self.fail("bad-reduction", "reduces over an axis twice", instruction)
        if _category(instruction.x.dtype) not in _COMBINED.get(combine, "bif"):
            message = f"'{combine}' does not combine {instruction.x.dtype}"
            raise self.fail("reduction-type", message, instruction)

    def check_truth(self, what: str, scalar: Scalar, instruction: Instruction) -> None:
        if scalar.dtype is not DType.BOOL:
            message = f"{what} is of type {scalar.dtype}, not bool"
            raise self.fail("mask-type", message, instruction)

    def check_check(self, instruction: Check) -> None:
        self.check_truth("what is checked", instruction.condition, instruction)

    def check_load(self, instruction: Load) -> None:
        self.loads.setdefault(instruction.buffer, []).append(instruction)
        if isinstance(instruction.other, complex):
            raise self.fail("bad-constant", "kernels hold no complex numbers", instruction)
        self.check_access(instruction)

    def check_store(self, instruction: Store) -> None:
        buffer, combine = instruction.buffer, instruction.combine
        self.stores.setdefault(buffer, []).append(instruction)
        if not buffer.is_written:
            message = f"buffer '{buffer.name}' is only read"
            raise self.fail("read-only", message, instruction)
        if instruction.value.dtype is not buffer.dtype:
            message = f"stores {instruction.value.dtype} to elements of {buffer.dtype}"
            raise self.fail("store-type", message, instruction)
        if combine not in STORES:
            raise self.fail("bad-store", f"there is no way '{combine}' to store", instruction)
        if combine == "add" and buffer.dtype is DType.BOOL:
            raise self.fail("bad-store", "truth values are not added", instruction)
        self.check_access(instruction)
        if instruction.is_ordered or instruction.mask is not None:
            return
        if is_injective(instruction.index, instruction.domain, self.sizes) is False:
            message = f"writes a place of '{buffer.name}' more than once"
            raise self.fail("written-twice", message, instruction)

    def check_access(self, instruction: Load | Store) -> None:
        if instruction.mask is not None:
            self.check_truth("the mask", instruction.mask, instruction)
            return
        extent = instruction.buffer.extent
        if not isinstance(extent, int) or self.is_empty(instruction.domain):
            return
        found = reach(instruction.index, self.sizes)
        if found is not None and (found[0] < 0 or found[1] >= extent):
            touched = f"touches elements {found[0]} to {found[1]}"
            message = f"{touched} of {extent} of '{instruction.buffer.name}'"
            raise self.fail("outside-buffer", message, instruction)

    def is_empty(self, domain: tuple[str, ...]) -> bool:
        return any(isinstance(self.sizes[axis], int) and not self.sizes[axis] for axis in domain)

    def check_shift(self, load: Load, stores: list[Store]) -> None:
        """Refuse a load that reads what another point of the same axes writes."""
        for store in stores:
            if load.index.terms != store.index.terms or load.index.scalars:
                continue
            shift = difference(load.index.offset, store.index.offset)
            found = reach(store.index, self.sizes)
            if shift == 0 or not isinstance(shift, int) or found is None:
                continue
            strides = [term.stride for term in load.index.terms]
            if abs(shift) <= found[1] - found[0] and shift % _divisor(strides) == 0:
                message = f"loads from '{load.buffer.name}' what another point stores"
                raise self.fail("shifted-load", message, load)

    def no_check(self, instruction: Instruction) -> None:
        """Accept what has no invariants of its own."""


_CHECKS: dict[type[Instruction], Callable[[_KernelVerifier, Any], None]] = {
    Apply: _KernelVerifier.check_apply,
    Check: _KernelVerifier.check_check,
    Constant: _KernelVerifier.check_constant,
    Convert: _KernelVerifier.no_check,
    Load: _KernelVerifier.check_load,
    Position: _KernelVerifier.no_check,
    Reduce: _KernelVerifier.check_reduce,
    Store: _KernelVerifier.check_store,
}

_COMBINED = {"any": "b", "all": "b", "sum": "if", "prod": "if", "welford": "f", "softmax": "f"}
"""The categories of types that reductions combine; those not listed combine all."""


def _category(dtype: DType) -> str:
    """Return the category of a type that kernels compute with, empty for any other."""
    if dtype is DType.BOOL:
        return "b"
    if dtype.is_integer:
        return "i"
    return "f" if dtype in (DType.F32, DType.F64) else "-"


def _divisor(strides: list[Dim]) -> int:
    """Return the greatest common divisor of strides that are integers."""
    return math.gcd(*(int(stride) for stride in strides)) or 1


def _list(items: Any) -> str:
    return ", ".join(map(str, items)) or "nothing"
