"""Print what a score kernel computes for a row of a tile: one query, some keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import (
    Apply,
    Buffer,
    Constant,
    Convert,
    Index,
    Instruction,
    Load,
    Position,
    Scalar,
    Term,
)
from lynx.ir.types import DType

from .functions import conversion, expression
from .text import dim, memory_type, number, term_text, value_type

SMALL = 1 << 28
"""No tensor has as many positions along an axis; below it they are computed as `i32`."""

_LARGEST = (1 << 31) - 1
_NARROW = frozenset({"add", "sub", "neg", "abs", "maximum", "minimum", "where"})


@dataclass
class Arguments:
    """What the functions of one attention are passed: addresses, and numbers for symbols.

    Operands and their gradients are known by the names of the buffers of kernels.
    """

    buffers: list[str]
    gradients: list[str] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)

    def symbol(self, name: str) -> str:
        """Return where the value of a symbol is."""
        return f"x->numbers[{self.symbols.setdefault(name, len(self.symbols))}]"

    def dim(self, value: Dim) -> str:
        """Return the text of a dimension."""
        return dim(value, self.symbol)

    def buffer(self, buffer: Buffer) -> str:
        """Return where the address of an operand is, or of the gradient of one."""
        names = self.gradients if buffer.is_written else self.buffers
        return f"{'grads' if buffer.is_written else 'x->operands'}[{names.index(buffer.name)}]"


@dataclass
class Rows:
    """Prints scalars at the points of a row: first what does not depend on the key.

    `replaced` maps scalars to others that are equal where the text is used, `given` scalars to the
    text that computes them, `l` being the number of a key in the tile.
    """

    arguments: Arguments
    given: Mapping[Scalar, str]
    replaced: Callable[[Scalar], Scalar]
    row: list[str] = field(default_factory=list)
    loop: list[str] = field(default_factory=list)
    names: dict[Scalar, str] = field(default_factory=dict)
    pointers: dict[tuple[Buffer, str], str] = field(default_factory=dict)
    narrow: dict[Scalar, int | None] = field(default_factory=dict)
    moving: set[Scalar] = field(default_factory=set)

    def text(self, scalar: Scalar) -> str:
        """Return the variable of a scalar, after printing what it takes."""
        pending = [self.replaced(scalar)]
        while pending:
            top = pending[-1]
            if top in self.names or top in self.given:
                pending.pop()
                continue
            missing = [
                source
                for source in map(self.replaced, top.instruction.operands)
                if source not in self.names and source not in self.given
            ]
            if missing:
                pending += missing
                continue
            self._declare(pending.pop())
        return self._of(scalar)

    def _declare(self, scalar: Scalar) -> None:
        source = scalar.instruction
        name = f"v{len(self.names)}"
        text = self._value(source)
        self.names[scalar] = name
        if isinstance(source, Constant):
            self.names[scalar] = f"({text})"
            return
        kind = value_type(self._dtype(scalar))
        operands = map(self.replaced, source.operands)
        is_moving = "k" in scalar.axes or any(o in self.given or o in self.moving for o in operands)
        if is_moving:
            self.moving.add(scalar)
        into = self.loop if is_moving else self.row
        into.append(f"const {kind} {name} = {text};")

    def _of(self, scalar: Scalar) -> str:
        scalar = self.replaced(scalar)
        return self.given.get(scalar) or self.names[scalar]

    def _wide(self, scalar: Scalar) -> str:
        """Return a scalar in its own type."""
        text = self._of(scalar)
        narrow = self._dtype(self.replaced(scalar)) is not self.replaced(scalar).dtype
        return f"(i64){text}" if narrow else text

    def _value(self, source: Instruction) -> str:
        match source:
            case Constant():
                return self._constant(source)
            case Position():
                return self._position(source)
            case Load():
                return self._load(source)
            case Convert():
                x = self.replaced(source.x)
                return conversion(self._of(x), self._dtype(x), source.dtype)
            case Apply():
                return self._apply(source)
        raise CompileError("kernel-unsupported", f"a score function cannot have {type(source)}")

    def _constant(self, source: Constant) -> str:
        if isinstance(source.value, bool | int | float | complex):
            return number(source.value, self._dtype(source.out))
        text = self.arguments.dim(source.value)
        return conversion(f"({text})", DType.I64, self._dtype(source.out))

    def _position(self, source: Position) -> str:
        if self._dtype(source.out) is DType.I64:
            return self._index(source.index, "(k0 + l)")
        names = {"b": "(i32)b", "h": "(i32)h", "q": "(i32)q", "k": "(first + l)"}
        parts = [self._term(term, names[str(term.of)], "(i32)") for term in source.index.terms]
        if source.index.offset != 0 or not parts:
            parts.append(f"(i32)({self.arguments.dim(source.index.offset)})")
        return " + ".join(parts)

    def _term(self, term: Term, of: str, cast: str) -> str:
        dims = [term.stride, term.divisor, term.modulus]
        if all(d is None or isinstance(d, int) for d in dims):
            return term_text(of, term.stride, term.divisor, term.modulus, self.arguments.symbol)
        text = of
        if term.divisor != 1:
            text = f"({text} / {cast}({self.arguments.dim(term.divisor)}))"
        if term.modulus is not None:
            text = f"({text} % {cast}({self.arguments.dim(term.modulus)}))"
        return f"{text} * {cast}({self.arguments.dim(term.stride)})"

    def _index(self, index: Index, key: str) -> str:
        """Return a position; `key` is the text of the key."""
        names = {"b": "b", "h": "h", "q": "q", "k": key}
        parts = []
        for term in index.terms:
            of = names[term.of] if isinstance(term.of, str) else f"(i64){self._of(term.of)}"
            parts.append(self._term(term, of, "(i64)"))
        if index.offset != 0 or not parts:
            parts.append(self.arguments.dim(index.offset))
        return " + ".join(parts)

    def _load(self, source: Load) -> str:
        place = self.place(source.buffer, source.index)
        if source.buffer.dtype is DType.BOOL:
            place = f"({place} != 0)"
        if source.mask is None:
            return place
        return f"{self._of(source.mask)} ? {place} : {number(source.other, source.buffer.dtype)}"

    def place(self, buffer: Buffer, index: Index) -> str:
        """Return an element of an operand; what does not depend on the key is in the pointer."""
        for scalar in index.scalars:
            self.text(scalar)
        moving = tuple(term for term in index.terms if _moves(term))
        is_plain = all(
            term.of == "k" and term.divisor == 1 and term.modulus is None for term in moving
        )
        if is_plain:
            name = self._pointer(buffer, index)
            stride = " + ".join(self._term(Term("k", t.stride), "1", "(i64)") for t in moving)
            return f"{name}[{'l' if stride == '1' else f'l * ({stride})' if moving else '0'}]"
        rest = tuple(term for term in index.terms if term not in moving)
        name = self._pointer(buffer, Index(rest, index.offset))
        return f"{name}[{self._index(Index(moving), '(k0 + l)')}]"

    def parts(self, index: Index) -> tuple[bool, bool]:
        """Whether an index moves with the key, and whether it does so by a stride alone."""
        moving = [term for term in index.terms if _moves(term)]
        plain = [t for t in moving if t.of == "k" and t.divisor == 1 and t.modulus is None]
        return bool(moving), len(plain) == len(moving)

    def _pointer(self, buffer: Buffer, index: Index) -> str:
        """Return a pointer to an element of the row, that of the first key."""
        start = self._index(index, "k0")
        name = self.pointers.get((buffer, start))
        if name is None:
            name = self.pointers[buffer, start] = f"p{len(self.pointers)}"
            kind = f"{'' if buffer.is_written else 'const '}{memory_type(buffer.dtype)} *"
            base = f"({kind}){self.arguments.buffer(buffer)}"
            qualifier = "" if buffer.is_written else "restrict "
            self.row.append(f"{kind}{qualifier}{name} = {base} + {start};")
        return name

    def _apply(self, source: Apply) -> str:
        arguments = [self.replaced(argument) for argument in source.arguments]
        dtypes = {self._dtype(argument) for argument in arguments}
        is_mixed = DType.I64 in dtypes and len(dtypes - {DType.BOOL}) > 1
        texts = [self._wide(a) if is_mixed else self._of(a) for a in arguments]
        last = arguments[-1].instruction
        constant: float | None = None
        if isinstance(last, Constant) and isinstance(last.value, bool | int | float):
            constant = float(last.value)
        dtype = DType.I64 if is_mixed else self._dtype(arguments[-1])
        text = expression(source.function, dtype, texts, constant)
        if source.dtype is DType.I64 and self._dtype(source.out) is DType.I32 and is_mixed:
            return f"(i32)({text})"
        return text

    def _dtype(self, scalar: Scalar) -> DType:
        """Return the type in which a scalar is computed."""
        return DType.I32 if self._bound(scalar) is not None else scalar.dtype

    def _bound(self, scalar: Scalar) -> int | None:
        """Return what the amount of a whole number stays within, None if it needs 64 bits."""
        if scalar.dtype is not DType.I64:
            return None
        if scalar not in self.narrow:
            self.narrow[scalar] = None
            bound = self._new_bound(scalar.instruction)
            self.narrow[scalar] = bound if bound is not None and bound <= _LARGEST else None
        return self.narrow[scalar]

    def _new_bound(self, source: Instruction) -> int | None:
        match source:
            case Constant():
                return abs(source.value) if isinstance(source.value, int) else SMALL
            case Position():
                return _bound_of_index(source.index)
            case Apply() if source.function in _NARROW:
                values = [a for a in source.arguments if a.dtype is not DType.BOOL]
                bounds = [self._bound(self.replaced(a)) for a in values]
                known = [bound for bound in bounds if bound is not None]
                if len(known) < len(bounds):
                    return None
                return sum(known) if source.function in ("add", "sub") else max(known)
        return None


def _bound_of_index(index: Index) -> int | None:
    total = 0
    for term in index.terms:
        if not isinstance(term.of, str):
            return None
        stride = term.stride if isinstance(term.stride, int) else 0
        if stride == 0:
            return None
        total += abs(stride) * SMALL
    return total + (abs(index.offset) if isinstance(index.offset, int) else 2 * SMALL)


def _moves(term: Term) -> bool:
    return term.of == "k" or (isinstance(term.of, Scalar) and "k" in term.of.axes)


def simplified(
    scalars: Iterable[Scalar], known: Mapping[Scalar, bool]
) -> Callable[[Scalar], Scalar]:
    """Return a function that finds a simpler equal of scalars where truth values are `known`."""
    found: dict[Scalar, Scalar] = {}
    truths = dict(known)

    def simpler(x: Scalar) -> Scalar:
        return found.get(x, x)

    for instruction in _in_order(scalars):
        for result in instruction.results:
            value = _truth(instruction, truths) if result.dtype is DType.BOOL else None
            if value is not None:
                truths.setdefault(result, value)
        if not isinstance(instruction, Apply):
            continue
        arguments = instruction.arguments
        chosen: Scalar | None = None
        if instruction.function == "where":
            value = truths.get(arguments[0])
            chosen = None if value is None else arguments[1 if value else 2]
        elif instruction.function == "add":
            zeros = [_is_number(simpler(a), 0) for a in arguments]
            chosen = arguments[1] if zeros[0] else arguments[0] if zeros[1] else None
        if chosen is not None:
            found[instruction.out] = simpler(chosen)
    return simpler


def _truth(source: Instruction, known: Mapping[Scalar, bool]) -> bool | None:
    """Return the truth value that an instruction gives, None if that is not known."""
    if isinstance(source, Constant):
        return bool(source.value) if isinstance(source.value, bool | int) else None
    if not isinstance(source, Apply):
        return None
    values = [known.get(argument) for argument in source.arguments]
    match source.function:
        case "not":
            return None if values[0] is None else not values[0]
        case "and" | "or":
            decisive = source.function == "or"
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        case "where":
            if values[0] is not None:
                return values[1] if values[0] else values[2]
            return values[1] if values[1] == values[2] else None
    return None


def _is_number(x: Scalar, value: float) -> bool:
    source = x.instruction
    while isinstance(source, Convert):
        source = source.x.instruction
    return isinstance(source, Constant) and source.value == value


def _in_order(scalars: Iterable[Scalar]) -> list[Instruction]:
    """Return all that scalars depend on, operands first."""
    done: dict[Instruction, None] = {}
    pending = [scalar.instruction for scalar in scalars]
    while pending:
        top = pending[-1]
        missing = [o.instruction for o in top.operands if o.instruction not in done]
        if top in done or not missing:
            done[pending.pop()] = None
        else:
            pending += missing
    return list(done)
