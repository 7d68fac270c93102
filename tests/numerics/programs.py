"""Random programs over tensors of many types and layouts, written as eager runs them."""

from __future__ import annotations

import contextlib
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.numerics.catalogue import KINDS

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "b8": torch.bool,
}
# f32 is what most models are made of.
DRAWN = ["f32", "f32", "f32", "bf16", "f16", "f64", "i64", "i32", "b8", "u8", "i16", "i8"]
SHAPES = [
    (4, 6), (6,), (2, 3, 4), (1, 6), (4, 1), (4, 4), (), (3, 70), (33, 17), (2, 8, 6), (1, 1),
    (130,), (1, 300), (2, 3, 4, 6), (0, 6), (2, 0), (16, 24), (6, 4), (5, 16, 24), (4, 2, 8),
]  # fmt: skip
LAYOUTS = ["plain", "plain", "plain", "turned", "every_other", "offset", "expanded"]
SCALARS = ["0", "1", "2", "3", "-1", "-2", "0.5", "-1.5", "0.1", "1e-3", "100", "7", "-0.0"]
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 1e4, -1.0)
MAX_ELEMENTS = 6000

# Jumps where operands differ by a rounding, though written among what else is exact.
_JUMPS = re.compile(
    r" [<>=!]=? |bool\(|sign|heaviside|argsort|logical_|isnan|isinf|isfinite|nan_to_num"
)
_ROUNDS = re.compile(
    r"exp_|tanh_|sigmoid_|cumsum_|alpha|index_add_|\] \+= |scatter_reduce|expanded"
)

# What eager raises for operands that it does not take.
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError)

Numbers = tuple[int, ...]
Step = tuple[str, Numbers]


@dataclass(frozen=True)
class Input:
    """An argument: what it looks like, and whether it has zeros, infinities and the like."""

    shape: tuple[int, ...]
    dtype: str
    layout: str = "plain"
    requires_grad: bool = False
    special: bool = False

    def make(self, generator: torch.Generator, exact: bool) -> Tensor:
        """Return a tensor with random contents; an exact run gets the same numbers as `f64`."""
        shape = _storage_shape(self.shape, self.layout)
        dtype = DTYPES[self.dtype]
        if dtype.is_floating_point:
            value = torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
            if self.special and value.numel():
                places = torch.randint(len(SPECIAL), shape, generator=generator)
                chosen = torch.tensor(SPECIAL, dtype=torch.float32).to(dtype)[places]
                is_special = torch.randint(5, shape, generator=generator) == 0
                value = torch.where(is_special, chosen, value)
            value = value.double() if exact else value
        else:
            low, high = (
                (0, 2) if self.dtype == "b8" else (0, 12) if self.dtype == "u8" else (-9, 10)
            )
            value = torch.randint(low, high, shape, generator=generator).to(dtype)
        return _laid_out(value, self.shape, self.layout).requires_grad_(self.requires_grad)


def _storage_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    if not shape:
        return shape
    if layout == "turned":
        return shape[::-1]
    if layout == "every_other":
        return (*shape[:-1], 2 * shape[-1])
    if layout == "offset":
        return (shape[0] + 1, *shape[1:])
    return (1, *shape[1:]) if layout == "expanded" else shape


def _laid_out(value: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    if not shape or layout == "plain":
        return value
    if layout == "turned":
        return value.permute(*range(len(shape))[::-1])
    if layout == "every_other":
        return value[..., ::2]
    return value[1:] if layout == "offset" else value.expand(shape)


@dataclass(frozen=True)
class Program:
    """Lines of a function `f(x0, x1, ...)` that returns the tuple of some names.

    `exact` are the names whose values every compiler must give bit by bit; `templates` is what the
    lines were made from.
    """

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    exact: frozenset[str] = frozenset()
    templates: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(f"x{index}" for index in range(len(self.inputs)))

    @property
    def source(self) -> str:
        """The text of the function."""
        head = f"def f({', '.join(self.names)}):"
        body = [*self.lines, f"return ({', '.join(self.returned)},)"]
        return "\n    ".join([head, *body]) + "\n"

    def function(self, exact: bool = False) -> Callable[..., tuple[Any, ...]]:
        """Compile the source, such that tracebacks show its lines."""
        name = f"<program {hash(self.source)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        space = namespace(exact)
        exec(compile(self.source, name, "exec"), space)
        made: Callable[..., tuple[Any, ...]] = space["f"]
        return made

    def arguments(self, seed: int, exact: bool = False) -> list[Tensor]:
        """Make arguments; the same seed gives the same values."""
        generator = torch.Generator().manual_seed(seed)
        return [spec.make(generator, exact) for spec in self.inputs]

    def enlarged(self, factor: int) -> Program:
        """Return the program for larger arguments, which it may not take."""
        inputs = []
        for spec in self.inputs:
            shape = tuple(size if size == 1 else size * factor for size in spec.shape)
            inputs.append(replace(spec, shape=shape))
        return replace(self, inputs=tuple(inputs))

    def __str__(self) -> str:
        pairs = zip(self.names, self.inputs, strict=True)
        return "\n".join([*(f"# {name}: {spec}" for name, spec in pairs), self.source])


def namespace(exact: bool) -> dict[str, Any]:
    """Return the names that programs use; in an exact run all floating types are `f64`."""
    dtypes = {
        name: torch.float64 if exact and dtype.is_floating_point else dtype
        for name, dtype in DTYPES.items()
    }
    return {"torch": torch, "F": torch.nn.functional, **dtypes}


@contextlib.contextmanager
def default_dtype(exact: bool) -> Iterator[None]:
    """Let factories make `f64` in an exact run."""
    torch.set_default_dtype(torch.float64 if exact else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _pick(items: Any, number: int) -> Any:
    return items[number % len(items)]


class Writer:
    """Turns steps into lines that run: each is tried as it is written."""

    def __init__(self, inputs: tuple[Input, ...]) -> None:
        self.program = Program(inputs, (), ())
        self.lines: list[str] = []
        self.space = namespace(False)
        self.values = dict(zip(self.program.names, self.program.arguments(0), strict=True))
        self.exact = set(self.values)
        self.templates: list[str] = []
        self.is_special = any(spec.special for spec in inputs)

    def add(self, step: Step) -> None:
        """Append a line of this kind, unless eager refuses it whatever it is about."""
        kind, numbers = step
        template = _pick(KINDS[kind], numbers[0])
        for attempt in range(6):
            if self._write(kind, template, numbers, attempt):
                self.templates.append(template)
                return

    def _write(self, kind: str, template: str, numbers: Numbers, attempt: int) -> bool:
        chosen = dict(zip("abc", self._operands(numbers, attempt), strict=True))
        used = [name for hole, name in chosen.items() if f"{{{hole}}}" in template]
        are_exact = all(name in self.exact for name in used)
        if not are_exact and (kind == "discrete" or _JUMPS.search(template)):
            return False
        rank = self.values[chosen["a"]].dim()
        line = template.format(
            **chosen,
            d=numbers[4] % rank if rank else 0,
            i=numbers[5] % 4,
            j=1 + numbers[6] % 3,
            s=_pick(SCALARS, numbers[5]),
            t=_pick(DRAWN, numbers[6]),
        )
        if kind == "writing":
            return self._write_in_place(line, chosen["a"], are_exact)
        return self._write_new(kind, line, used, are_exact)

    def _operands(self, numbers: Numbers, attempt: int) -> tuple[str, str, str]:
        """Prefer late values, and values that go together."""
        names = list(self.values)[::-1]
        a = names[_skewed(numbers[1] + attempt, len(names))]
        shape, dtype = self.values[a].shape, self.values[a].dtype
        like = [n for n in names if self.values[n].shape == shape and self.values[n].dtype is dtype]
        near = [n for n in names if _goes_with(self.values[n].shape, shape)]
        pools = [like, near, near, names]
        b = _pick(pools[(numbers[2] + attempt) % 4], numbers[2] // 4 + attempt // 2)
        c = _pick(pools[(numbers[3] + attempt) % 4], numbers[3] // 4)
        return a, b, c

    def _write_new(self, kind: str, line: str, used: list[str], are_exact: bool) -> bool:
        value = self._run(line)
        if not isinstance(value, Tensor) or value.numel() > MAX_ELEMENTS or value.is_complex():
            return False
        if "to(" in line and "clamp" not in line and self._becomes_whole(value, used):
            return False
        if not self._is_sane(value):
            return False
        target = f"t{len(self.lines)}"
        self.values[target] = value
        self.lines.append(f"{target} = {line}")
        keeps_bits = kind in ("exact", "moving", "discrete") or not value.is_floating_point()
        if are_exact and keeps_bits:
            self.exact.add(target)
        return True

    def _becomes_whole(self, value: Tensor, used: list[str]) -> bool:
        """Whether floating numbers became integers, which eager leaves open for large ones."""
        if value.is_floating_point() or value.dtype is torch.bool:
            return False
        return any(self.values[name].is_floating_point() for name in used)

    def _is_sane(self, value: Tensor) -> bool:
        """Whether there are infinities and NaN only in programs that begin with such."""
        return self.is_special or bool(torch.isfinite(value.detach()).all())

    def _write_in_place(self, line: str, target: str, are_exact: bool) -> bool:
        if not self._run(line, statement=True):
            return False
        if not all(map(self._is_sane, self.values.values())):
            self._replay()
            return False
        self.lines.append(line)
        value = self.values[target]
        if not are_exact or (value.is_floating_point() and _ROUNDS.search(line)):
            memory = value.untyped_storage().data_ptr()
            for name, other in self.values.items():
                if other.untyped_storage().data_ptr() == memory:
                    self.exact.discard(name)
        return True

    def _replay(self) -> None:
        """Run all lines again, since the last one left a mess behind."""
        self.values = dict(zip(self.program.names, self.program.arguments(0), strict=True))
        for line in self.lines:
            name, _, rest = line.partition(" = ")
            if re.fullmatch(r"t\d+", name):
                self.values[name] = self._run(rest)
            else:
                self._run(line, statement=True)

    def _run(self, line: str, statement: bool = False) -> Any:
        torch.manual_seed(0)
        try:
            if statement:
                exec(line, self.space, self.values)
                return True
            return eval(line, self.space, self.values)
        except _REFUSALS:
            return None

    def finish(self, numbers: Numbers) -> Program:
        """Return the program that gives back its last value and some others."""
        names = list(self.values)[::-1]
        chosen = dict.fromkeys([names[0], *(names[_skewed(n, len(names))] for n in numbers)])
        return replace(
            self.program,
            lines=tuple(self.lines),
            returned=tuple(chosen),
            exact=frozenset(self.exact),
            templates=tuple(self.templates),
        )


def _skewed(number: int, count: int) -> int:
    """Return an index that is more often small."""
    return min(number % count, number // 7 % count)


def _goes_with(a: torch.Size, b: torch.Size) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))
