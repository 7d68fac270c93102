"""Print a scheduled loop nest as a C function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lynx.ir.dims import Dim, symbol
from lynx.ir.errors import CompileError
from lynx.ir.kernel import (
    Apply,
    Buffer,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
    Term,
)
from lynx.ir.types import DType

from .functions import conversion, expression
from .schedule import Schedule
from .split import Partial
from .text import (
    dim,
    index_text,
    memory_type,
    number,
    product_text,
    term_text,
    value_type,
)


@dataclass(frozen=True)
class Message:
    """Stands among the parameters for the code of a failed check."""

    text: str


Parameter = Dim | Message


@dataclass(eq=False)
class NestText:
    """The text of a nest's function, with `@NAME@` for its name, and what to call it with."""

    text: str
    words: list[str]
    buffers: list[Buffer]
    parameters: list[Parameter]
    memory: list[tuple[list[Dim], int]]
    places: list[str]


@dataclass(eq=False)
class Names:
    """Gives variables of a function their names, in order of first use."""

    plan: Schedule
    buffers: dict[Buffer, str] = field(default_factory=dict)
    parameters: dict[Parameter, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    scalars: dict[Scalar, int] = field(default_factory=dict)
    memory: list[tuple[list[Dim], int]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis in self.plan.nest.axes:
            self.axes[axis] = f"i{len(self.axes)}"

    def axis(self, name: str) -> str:
        """Return the loop variable of an axis."""
        return self.axes[name]

    def number(self, scalar: Scalar) -> int:
        """Return the number of a scalar."""
        return self.scalars.setdefault(scalar, len(self.scalars))

    def buffer(self, buffer: Buffer) -> str:
        """Return the pointer to a buffer."""
        return self.buffers.setdefault(buffer, f"b{len(self.buffers)}")

    def parameter(self, value: Parameter) -> str:
        """Return the variable of a number that the caller passes."""
        return self.parameters.setdefault(value, f"z{len(self.parameters)}")

    def symbol(self, name: str) -> str:
        """Return the variable that holds a symbol."""
        if name not in self.symbols:
            self.symbols[name] = self.parameter(symbol(name))
        return self.symbols[name]

    def dim(self, value: Dim) -> str:
        """Return the text of a dimension."""
        return dim(value, self.symbol)

    def product(self, values: list[Dim]) -> str:
        """Return the text of a product of dimensions."""
        return product_text(values, self.symbol)

    def take_memory(self, dims: list[Dim], itemsize: int) -> str:
        """Reserve memory of a unit, and return where it starts."""
        offset = " + ".join(
            f"((({self.product(known)}) * {size} + 63) & ~63LL)" for known, size in self.memory
        )
        self.memory.append((dims, itemsize))
        return f"local + {offset}" if offset else "local"


class Expressions:
    """Prints single instructions; `of` says how a scalar is called where it is used."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def index(self, index: Index, of: Callable[[Scalar], str]) -> str:
        """Return the text of an index."""
        return index_text(index, self.names.axis, of, self.names.symbol)

    def axis_term(self, term: Term) -> str:
        """Return the text of a term of an axis."""
        assert isinstance(term.of, str), term
        axis = self.names.axis(term.of)
        return term_text(axis, term.stride, term.divisor, term.modulus, self.names.symbol)

    def constant(self, instruction: Constant) -> str:
        """Return the text of a number."""
        value, dtype = instruction.value, instruction.dtype
        if isinstance(value, bool | int | float | complex):
            return number(value, dtype)
        return f"({conversion(self.names.dim(value), DType.I64, dtype)})"

    def value(
        self, instruction: Instruction, of: Callable[[Scalar], str], index: str | None = None
    ) -> str:
        """Return the expression that an instruction computes; `index` is that of a load."""
        match instruction:
            case Position():
                return index or self.index(instruction.index, of)
            case Load():
                return self._load(instruction, of, index or self.index(instruction.index, of))
            case Convert():
                return conversion(of(instruction.x), instruction.x.dtype, instruction.dtype)
            case Apply():
                return self._apply(instruction, of)
            case _:
                raise CompileError("kernel-unsupported", f"cannot print {type(instruction)}")

    def _apply(self, instruction: Apply, of: Callable[[Scalar], str]) -> str:
        arguments = [of(argument) for argument in instruction.arguments]
        last = instruction.arguments[-1].instruction
        constant: float | None = None
        if isinstance(last, Constant) and isinstance(last.value, bool | int | float):
            constant = float(last.value)
        operand = instruction.arguments[-1].dtype
        return expression(instruction.function, operand, arguments, constant)

    def _load(self, instruction: Load, of: Callable[[Scalar], str], index: str) -> str:
        text = f"{self.names.buffer(instruction.buffer)}[{index}]"
        if instruction.buffer.dtype is DType.BOOL:
            text = f"({text} != 0)"
        if instruction.mask is None:
            return text
        other = number(instruction.other, instruction.buffer.dtype)
        return f"{of(instruction.mask)} ? {text} : {other}"

    def store(self, store: Store, of: Callable[[Scalar], str], index: str) -> str:
        """Return the statement of a store."""
        target = f"{self.names.buffer(store.buffer)}[{index}]"
        value = of(store.value)
        dtype = store.buffer.dtype
        if store.combine == "add":
            value = self._sum(target, value, dtype)
        mask = f"if ({of(store.mask)}) " if store.mask is not None else ""
        return f"{mask}{target} = {value};"

    def _sum(self, target: str, value: str, dtype: DType) -> str:
        if dtype.is_low_precision:
            total = f"lynx_from_{dtype}({target}) + lynx_from_{dtype}({value})"
            return f"lynx_to_{dtype}({total})"
        if dtype is DType.BOOL:
            return f"{target} | {value}"
        return expression("add", dtype, [target, value], None)

    def split_index(
        self, index: Index, of: Callable[[Scalar], str], level: Callable[[str | Scalar], int]
    ) -> dict[int, str]:
        """Return the parts of an index by the loop level that they change at."""
        parts: dict[int, list[str]] = {}
        for term in index.terms:
            if term.stride == 0:
                continue
            source = term.of
            name = self.names.axis(source) if isinstance(source, str) else f"(i64){of(source)}"
            text = term_text(name, term.stride, term.divisor, term.modulus, self.names.symbol)
            parts.setdefault(level(source), []).append(text)
        if index.offset != 0 or not parts:
            parts.setdefault(0, []).append(self.names.dim(index.offset))
        return {key: " + ".join(texts) for key, texts in parts.items()}


def declared(scalar: Scalar, name: str, value: str) -> str:
    """Return the declaration of a scalar."""
    return f"const {value_type(scalar.dtype)} {name} = {value};"


def words_of(plan: Schedule) -> list[str]:
    """Return up to four words that say what a nest computes."""
    words: dict[str, None] = {}
    for instruction in plan.nest.body:
        match instruction:
            case Apply():
                words[instruction.function] = None
            case Reduce():
                words[instruction.combine] = None
            case Load() if instruction.index.scalars:
                words["gather"] = None
    for effect in plan.nest.effects:
        if isinstance(effect, Partial):
            words[effect.combine] = None
        elif isinstance(effect, Store) and (effect.is_ordered or effect.index.scalars):
            words["scatter"] = None
    plain = ("add", "mul", "sub", "where", "eq", "lt", "ge", "and")
    if len(words) > 4:
        dull = [word for word in words if word in plain]
        for word in dull[: len(words) - 4]:
            del words[word]
    return list(words)[:5] or ["copy"]


def places_of(plan: Schedule) -> list[str]:
    """Return the places in the user's model that a nest comes from."""
    places: dict[str, None] = {}
    for instruction in (*plan.nest.body, *plan.nest.effects):
        if instruction.loc.is_known:
            places[str(instruction.loc).replace("*/", "* /")] = None
    return list(places)


def pointer(buffer: Buffer, name: str, position: int, is_written: bool) -> str:
    """Return the declaration of the pointer to a buffer."""
    const = "" if is_written else "const "
    return f"{const}{memory_type(buffer.dtype)} *restrict {name} = step->p[{position}];"


def check_code(names: Names, check: Check) -> str:
    """Return the call that reports a failed check."""
    return f"lynx_fail(step, {names.parameter(Message(check.message))});"
