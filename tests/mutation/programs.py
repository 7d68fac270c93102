"""Random programs over a few tensors: views, writes through views, and what they return."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

SHAPES = [(4, 6), (6,), (2, 3, 4), (1, 5), (4, 4), ()]
Numbers = tuple[int, ...]
Step = tuple[str, Numbers]


@dataclass(frozen=True)
class Input:
    """An argument: a fresh tensor, or (`base` set) all of an earlier one, transposed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    base: int | None = None


@dataclass(frozen=True)
class Program:
    """The source of a function `f(x0, x1, ...)` that returns a tuple, and its arguments."""

    source: str
    inputs: tuple[Input, ...]

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Compile the source, so that tracebacks can show its lines."""
        name = f"<program {hash(self.source)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        space: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, name, "exec"), space)
        made: Callable[..., tuple[Any, ...]] = space["f"]
        return made

    def arguments(self, seed: int) -> list[Tensor]:
        """Make arguments; the same seed gives the same values."""
        generator = torch.Generator().manual_seed(seed)
        made: list[Tensor] = []
        for spec in self.inputs:
            if spec.base is not None:
                made.append(_turned(made[spec.base]))
            elif spec.dtype.is_floating_point:
                value = torch.randn(spec.shape, generator=generator, dtype=spec.dtype)
                made.append(value.requires_grad_(spec.requires_grad))
            else:
                made.append(torch.randint(-9, 9, spec.shape, generator=generator, dtype=spec.dtype))
        return made


def _turned(x: Tensor) -> Tensor:
    """Return another tensor over the same memory; torch sees no view in it."""
    turned = x.detach().mT if x.dim() > 1 else x.detach()
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, turned.shape, turned.stride())


def _pick(items: list[Any], number: int) -> Any:
    return items[number % len(items)]


def _dim(x: Tensor, number: int) -> int:
    return number % x.dim() if x.dim() else 0


def _slices(x: Tensor, n: Numbers) -> str:
    """Return an index that keeps part of one dimension, such as `:, 1:4:2`."""
    if not x.dim():
        return "..."
    dim, size = _dim(x, n[0]), x.shape[_dim(x, n[0])]
    start = n[1] % max(size, 1)
    part = f"{start}:{start + 1 + n[2] % max(size - start, 1)}:{1 + n[3] % 2}"
    return ", ".join([":"] * dim + [part])


def _view_shape(x: Tensor, n: Numbers) -> list[int]:
    total = x.numel()
    divisors = [d for d in range(1, total + 1) if total % d == 0] or [0]
    first = _pick(divisors, n[0])
    return [first, total // first if first else 0] if n[1] % 2 else [total]


def _strided(x: Tensor, n: Numbers) -> str:
    room = x.numel()
    columns, rows = 1 + n[0] % 3, 1 + n[1] % 2
    last = (rows - 1) * 2 + columns - 1
    offset = n[2] % max(room - last, 1)
    return f"[{rows}, {columns}], [2, 1], {x.storage_offset() + offset}"


VIEWS: dict[str, Callable[[Tensor, Numbers], str]] = {
    "view": lambda x, n: f".view({_view_shape(x, n)})",
    "transpose": lambda x, n: f".transpose({_dim(x, n[0])}, {_dim(x, n[1])})",
    "slice": lambda x, n: f"[{_slices(x, n)}]",
    "select": lambda x, n: f".select({_dim(x, n[0])}, {n[1] % 2})",
    "unsqueeze": lambda x, n: f".unsqueeze({n[0] % (x.dim() + 1)})",
    "expand": lambda x, n: f".expand({[2, *x.shape]})",
    "permute": lambda x, n: f".permute({list(range(x.dim()))[::-1]})",
    "diagonal": lambda x, n: ".diagonal()",
    "chunk": lambda x, n: f".chunk(2, {_dim(x, n[0])})[{n[1] % 2}]",
    "unbind": lambda x, n: f".unbind({_dim(x, n[0])})[{n[1] % 2}]",
    "squeeze": lambda x, n: f".squeeze({_dim(x, n[0])})",
    "as_strided": lambda x, n: f".as_strided({_strided(x, n)})",
    "detach": lambda x, n: ".detach()",
    "alias": lambda x, n: ".view_as(b)",
}
FRESH: dict[str, Callable[[Tensor, Numbers], str]] = {
    "scale": lambda x, n: " * 2 + 1",
    "clone": lambda x, n: ".clone()",
    "contiguous": lambda x, n: ".contiguous()",
    "sum": lambda x, n: f".sum({_dim(x, n[0])})",
    "reshape": lambda x, n: f".reshape({_view_shape(x, n)})",
    "cast": lambda x, n: f".to(torch.{_pick(['float32', 'float64', 'int64'], n[0])})",
    "flip": lambda x, n: f".flip({_dim(x, n[0])})",
}
WRITES: dict[str, Callable[[Tensor, Numbers], str]] = {
    "mul_": lambda x, n: ".mul_(3)",
    "add_": lambda x, n: ".add_(b)",
    "copy_": lambda x, n: ".copy_(b)",
    "sub_from": lambda x, n: f"[{_slices(x, n)}] -= 2",
    "set_slice": lambda x, n: f"[{_slices(x, n)}] = {n[3] % 5}",
    "set_other": lambda x, n: f"[{_slices(x, n)}] = b",
    "index_put": lambda x, n: f"[torch.tensor([0, {n[0] % 2}])] = {n[1] % 4}",
    "masked": lambda x, n: f"[a > {n[0] % 3}] = 7",
    "masked_fill_": lambda x, n: f".masked_fill_(a < {n[0] % 2}, 5)",
    "zero_": lambda x, n: ".zero_()",
    "clamp_": lambda x, n: f".clamp_(max={n[0] % 3})",
    "transpose_": lambda x, n: f".transpose_({_dim(x, n[0])}, {_dim(x, n[1])})",
    "unsqueeze_": lambda x, n: f".unsqueeze_({n[0] % (x.dim() + 1)})",
}
KINDS = [*VIEWS, *FRESH, *WRITES, *WRITES]


class Writer:
    """Turns drawn numbers into lines that run: each is tried as it is written."""

    def __init__(self, inputs: tuple[Input, ...]) -> None:
        self.program = Program("", inputs)
        self.lines: list[str] = []
        self.names = [f"x{index}" for index in range(len(inputs))]
        self.values = dict(zip(self.names, self.program.arguments(0), strict=True))

    def add(self, kind: str, numbers: Numbers) -> None:
        """Append a line of this kind, unless eager refuses it."""
        name = _pick(self.names, numbers[0])
        other = _pick(self.names, numbers[1])
        rest = numbers[2:]
        table = VIEWS | FRESH | WRITES
        target = f"t{len(self.lines)}"
        text = table[kind](self.values[name], rest).replace("(b)", f"({other})")
        text = (
            text.replace("[a ", f"[{name} ")
            .replace("(a ", f"({name} ")
            .replace("= b", f"= {other}")
        )
        line = f"{name}{text}" if kind in WRITES else f"{target} = {name}{text}"
        if kind in WRITES and rest[0] % 4 == 0:
            line = f"with torch.no_grad(): {line}"
        if self._runs(line):
            self.lines.append(line)
            if kind not in WRITES:
                self.names.append(target)

    def finish(self, returned: Numbers) -> Program:
        """Return the program that gives back some of its variables, perhaps one twice."""
        results = ", ".join(_pick(self.names[::-1], number) for number in returned)
        names = ", ".join(self.names[: len(self.program.inputs)])
        body = "\n".join(f"    {line}" for line in [*self.lines, f"return ({results},)"])
        return Program(f"def f({names}):\n{body}\n", self.program.inputs)

    def _runs(self, line: str) -> bool:
        try:
            exec(line, {"torch": torch}, self.values)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return False
        return all(math.prod(value.shape) < 500 for value in self.values.values())


@st.composite
def input_lists(draw: st.DrawFn) -> tuple[Input, ...]:
    """Draw one to three arguments; now and then one shares memory with an earlier one."""
    made: list[Input] = []
    for index in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from(SHAPES))
        dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.int64]))
        grad = dtype.is_floating_point and draw(st.booleans())
        plain = [i for i in range(index) if made[i].base is None and not made[i].requires_grad]
        if plain and draw(st.integers(0, 3)) == 3:
            base = made[plain[0]]
            turned = (*base.shape[:-2], *base.shape[-2:][::-1])
            made.append(Input(turned, base.dtype, False, plain[0]))
        else:
            made.append(Input(shape, dtype, grad))
    return tuple(made)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program of up to nine lines."""
    writer = Writer(draw(input_lists()))
    numbers = st.tuples(*[st.integers(0, 11)] * 6)
    for kind, drawn in draw(
        st.lists(st.tuples(st.sampled_from(KINDS), numbers), min_size=3, max_size=9)
    ):
        writer.add(kind, drawn)
    return writer.finish(tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))))
