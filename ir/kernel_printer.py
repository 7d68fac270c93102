"""Print kernels as text that the parser reads back, and as keys that equal kernels share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .dims import Dim, format_dim
from .kernel import (
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
from .printer import MAX_COLUMNS, Printer, format_literal, format_location, quote

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def print_kernel(kernel: Kernel, *, locations: bool = True) -> str:
    """Return the text of a kernel, with a newline at its end; `parse_kernel` reads it back."""
    printer = KernelPrinter(kernel, locations=locations)
    lines = [printer.header(), *(f"  {printer.instruction(i)}" for i in kernel.body), "}", ""]
    return "\n".join(lines)


def print_kernels(kernels: Iterable[Kernel], *, locations: bool = True) -> str:
    """Return the text of several kernels, with an empty line between them."""
    return "\n".join(print_kernel(kernel, locations=locations) for kernel in kernels)


def kernel_key(kernel: Kernel) -> str:
    """Return a text that kernels share if they differ only in names and places.

    The names of the kernel, of axes and of buffers do not count. Those of symbols do, since they
    say which sizes a call passes, and so do the messages of checks.
    """
    printer = KernelPrinter(kernel, locations=False, normalize=True)
    return "\n".join([printer.header(), *map(printer.instruction, kernel.body)])


class KernelPrinter:
    """Gives names to buffers, axes and scalars, and prints instructions one by one.

    With `normalize`, buffers and axes get numbers for names, and the kernel none.
    """

    def __init__(self, kernel: Kernel, *, locations: bool = True, normalize: bool = False) -> None:
        self.kernel = kernel
        self.locations = locations
        self.title = "_" if normalize else _word(kernel.name)
        self.axes: Mapping[str, str] = {
            axis.name: f"a{index}" if normalize else axis.name
            for index, axis in enumerate(kernel.axes)
        }
        names = Printer()
        self.buffers = {
            buffer: f"%b{index}" if normalize else names.unique(buffer.name, "buffer")
            for index, buffer in enumerate(kernel.buffers)
        }
        self.scalars: dict[Scalar, str] = {}

    def header(self) -> str:
        """Return the first line, or lines, up to the brace."""
        buffers = [
            f"{name}: {buffer.dtype}[{format_dim(buffer.extent)}]{' write' * buffer.is_written}"
            for buffer, name in self.buffers.items()
        ]
        sizes = ", ".join(
            f"{self.axes[axis.name]}: {format_dim(axis.size)}" for axis in self.kernel.axes
        )
        start, end = f"kernel {self.title}(", f"){' over ' if sizes else ''}{sizes} {{"
        line = f"{start}{', '.join(buffers)}{end}"
        if len(line) <= MAX_COLUMNS or not buffers:
            return line
        separator = ",\n    "
        return f"{start}\n    {separator.join(buffers)}\n{end}"

    def instruction(self, instruction: Instruction) -> str:
        """Name the results of an instruction and return its line, without indentation."""
        line = self.action(instruction)
        if instruction.results:
            for result in instruction.results:
                self.scalars[result] = f"%{len(self.scalars)}"
            names = ", ".join([self.scalars[result] for result in instruction.results])
            types = ", ".join([str(result.dtype) for result in instruction.results])
            line = f"{names} = {line} : {types}"
        if self.locations and (instruction.loc.is_known or instruction.loc.line):
            line = f"{line}  {format_location(instruction.loc)}"
        return line

    def action(self, instruction: Instruction) -> str:
        """Return what an instruction does, without its results: `reduce max over j %0`."""
        match instruction:
            case Constant():
                return f"constant {format_literal(instruction.value)}"
            case Position():
                return f"position {self.index(instruction.index)}"
            case Load():
                return f"load {self.place(instruction)}{self.mask(instruction)}"
            case Apply():
                return f"{instruction.function} {self.list(instruction.arguments)}"
            case Convert():
                return f"convert {self.scalar(instruction.x)}"
            case Reduce():
                axes = ", ".join(self.axes.get(axis, axis) for axis in instruction.over)
                over = f" over {axes}" if axes else ""
                return f"reduce {instruction.combine}{over} {self.scalar(instruction.x)}"
            case Store():
                combine = "" if instruction.combine == "set" else f"{instruction.combine} "
                value = self.scalar(instruction.value)
                return f"store {combine}{self.place(instruction)} {value}{self.mask(instruction)}"
            case Check():
                return f"check {self.scalar(instruction.condition)} {quote(instruction.message)}"
        raise TypeError(f"unknown instruction {instruction}")

    def mask(self, instruction: Load | Store) -> str:
        """Return ` if %mask`, for a load with what is read otherwise; empty without a mask."""
        if instruction.mask is None:
            return ""
        text = f" if {self.scalar(instruction.mask)}"
        if isinstance(instruction, Store):
            return text
        return f"{text} else {format_literal(instruction.other)}"

    def scalar(self, scalar: Scalar) -> str:
        """Return the name of a scalar; an undefined one gets a name that the parser refuses."""
        return self.scalars.get(scalar, "%undefined")

    def list(self, scalars: Iterable[Scalar]) -> str:
        """Return names, separated by commas."""
        return ", ".join([self.scalar(scalar) for scalar in scalars])

    def place(self, instruction: Load | Store) -> str:
        """Return `%x[i*256 + j]`."""
        name = self.buffers.get(instruction.buffer, "%undefined")
        return f"{name}{self.index(instruction.index)}"

    def index(self, index: Index) -> str:
        """Return an index in brackets."""
        parts = [self.term(term) for term in index.terms]
        if isinstance(index.offset, int) and index.offset < 0:
            return f"[{' + '.join(parts)} - {-index.offset}]" if parts else f"[{index.offset}]"
        if index.offset != 0 or not parts:
            parts.append(_factor(index.offset))
        return f"[{' + '.join(parts)}]"

    def term(self, term: Term) -> str:
        """Return `i // 4 % 8 * 16`, leaving out what does nothing."""
        if isinstance(term.of, str):
            text = self.axes.get(term.of, term.of)
        else:
            text = self.scalar(term.of)
        rounds = term.divisor != 1 or term.modulus is not None
        if term.divisor != 1:
            text += f" // {_factor(term.divisor)}"
        if term.modulus is not None:
            text += f" % {_factor(term.modulus)}"
        if term.stride != 1:
            text += f" * {_factor(term.stride)}" if rounds else f"*{_factor(term.stride)}"
        return text


def _word(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name)


def _factor(dim: Dim) -> str:
    """Return a dimension as one factor, in parentheses unless it is a number or a name."""
    text = format_dim(dim)
    return text if text.isdigit() or _PLAIN.fullmatch(text) else f"({text})"


def buffer_text(buffer: Buffer) -> str:
    """Return a buffer in words, for messages."""
    return f"buffer '{buffer.name}' of {format_dim(buffer.extent)} elements of {buffer.dtype}"
