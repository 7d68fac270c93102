"""Put the kernels of all stages into one readable module, with the function that runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lynx.ir.dims import Dim, is_static, product, python_source
from lynx.ir.kernel import Buffer, Check, Kernel

from .device import HELPERS
from .dtypes import torch_name
from .expressions import Names, identifier
from .matmul import Contraction, ProductSchedule, choose_product
from .parts import Stage, Staged
from .printer import PrintedStage, print_product, print_stage
from .schedule import Schedule, choose
from .sizes import LIMITS, Limits
from .stages import stage
from .together import groups_of, print_together
from .writer import PrintOptions

LIMIT = 2**31 - 2**16
"""From this many elements on, positions need 64 bits; some less than fit, since tiles overhang."""


@dataclass(frozen=True)
class PrintedModule:
    """The text of a module, whose function `run` takes the buffers, failures, and symbols."""

    name: str
    text: str
    stages: tuple[PrintedStage, ...]
    messages: tuple[str, ...]


def print_module(
    kernel: Kernel,
    *,
    is_deterministic: bool = False,
    schedules: tuple[Schedule, ...] | None = None,
    limits: Limits = LIMITS,
) -> PrintedModule:
    """Return the Triton module of a kernel; `schedules` replace the chosen ones, one a stage.

    `CompileError` where Triton has no such types, or the order of memory accesses has no launch.
    """
    staged = stage(kernel, is_deterministic=is_deterministic, limits=limits)
    if schedules is None:
        schedules = tuple(choose(part, limits) for part in staged.stages)
    return print_staged(kernel, staged, is_deterministic=is_deterministic, schedules=schedules)


def print_staged(
    kernel: Kernel,
    staged: Staged,
    *,
    is_deterministic: bool = False,
    schedules: tuple[Schedule, ...],
) -> PrintedModule:
    """Return the module of a kernel that was cut into stages."""
    index_type = index_type_of(_reaches(staged))
    printed: list[PrintedStage] = []
    messages: list[str] = []
    for group in groups_of(staged.stages, schedules):
        parts = [staged.stages[number] for number in group]
        chosen = [schedules[number] for number in group]
        options = PrintOptions(index_type, is_deterministic, len(messages))
        if len(parts) > 1:
            name = f"{kernel.name}_{group[0]}_to_{group[-1]}"
            printed.append(print_together(parts, chosen, options, identifier(name)))
            continue
        printed.append(print_stage(parts[0], chosen[0], options))
        messages.extend(one.message for one in parts[0].kernel.body if isinstance(one, Check))
    host = Host(kernel, staged, printed, index_type).text()
    texts = [one.text for one in printed]
    text = "\n\n".join([head(texts, host), *texts, host])
    return PrintedModule(kernel.name, text, tuple(printed), tuple(messages))


def print_product_module(
    contraction: Contraction, schedule: ProductSchedule | None = None
) -> PrintedModule:
    """Return the module of a matrix product."""
    kernel = contraction.kernel
    columns = (*contraction.n, *contraction.k)
    rows = (*contraction.batch, *contraction.m)
    staged = Staged((Stage(kernel, rows, columns),), (), {})
    index_type = index_type_of(_reaches(staged))
    chosen = schedule if schedule is not None else choose_product(contraction)
    printed = print_product(contraction, chosen, PrintOptions(index_type))
    host = Host(kernel, staged, [printed], index_type).text()
    text = "\n\n".join([head([printed.text], host), printed.text, host])
    return PrintedModule(kernel.name, text, (printed,), ())


def _reaches(staged: Staged) -> list[Dim]:
    """Return how far positions go: in buffers, and over rows and columns."""
    found: list[Dim] = []
    for part in staged.stages:
        sizes = part.kernel.sizes
        found.extend(buffer.extent for buffer in part.kernel.buffers)
        found.extend(product(sizes[a] for a in axes) for axes in (part.rows, part.columns))
    return found


def index_type_of(reaches: list[Dim]) -> str:
    """Return the type of positions: `INDEX` where the launch decides."""
    if any(isinstance(dim, int) and dim >= LIMIT for dim in reaches):
        return "tl.int64"
    return "tl.int32" if is_static(reaches) else "INDEX"


def head(kernels: list[str], host: str) -> str:
    """Return the imports of a module."""
    body = "\n".join(kernels)
    lines = ["import triton", "import triton.language as tl"]
    if "torch." in host:
        lines.insert(0, "import torch")
    if "libdevice." in body:
        lines.append("from triton.language.extra import libdevice")
    called = set(re.findall(r"(?<![\w.])\w+(?=\()", body))
    helpers = [name for name in HELPERS if name in called]
    if helpers:
        lines.append(f"\nfrom lynx.backends.triton.device import {', '.join(helpers)}")
    return "\n".join(lines) + "\n"


class Host:
    """Prints the function that launches the kernels."""

    def __init__(
        self, kernel: Kernel, staged: Staged, printed: list[PrintedStage], index_type: str
    ) -> None:
        self.kernel = kernel
        self.staged = staged
        self.printed = printed
        self.index_type = index_type
        names = Names()
        for symbol in kernel.symbols:
            names.fresh(symbol)
        for one in printed:
            names.fresh(one.name)
        known = (*kernel.buffers, *staged.snapshots, *staged.scratch)
        self.names: dict[Buffer, str] = {buffer: names.fresh(buffer.name) for buffer in known}
        self.lines: list[str] = []
        self.spelled = {"INDEX": "index"}

    def text(self) -> str:
        """Return the function."""
        buffers = [self.names[buffer] for buffer in self.kernel.buffers]
        symbols = list(self.kernel.symbols)
        self.lines.append(f"def run({', '.join([*buffers, 'failures', *symbols])}):")
        self.lines.append(f'    """Run {self.kernel.name} on its buffers, in order."""')
        for copy, original in self.staged.snapshots.items():
            name, size = self.names[original], python_source(copy.extent)
            flat = f"torch.as_strided({name}, ({size},), (1,), {name}.storage_offset())"
            self.lines.append(f"    {self.names[copy]} = {flat}.clone()")
        device = f"{buffers[0]}.device" if buffers else "None"
        for buffer in self.staged.scratch:
            size = python_source(buffer.extent)
            made = f"torch.empty({size}, dtype={torch_name(buffer.dtype)}, device={device})"
            self.lines.append(f"    {self.names[buffer]} = {made}")
        self.choose_index_type(_reaches(self.staged))
        for one in self.printed:
            self.launch(one)
        return "\n".join(self.lines) + "\n"

    def choose_index_type(self, reaches: list[Dim]) -> None:
        """Print how the type of positions is chosen, if the launch does that."""
        if self.index_type != "INDEX":
            return
        symbolic = (dim for dim in reaches if not isinstance(dim, int))
        dims = dict.fromkeys(map(python_source, symbolic))
        most = ", ".join(dims)
        most = f"max({most})" if len(dims) > 1 else most
        self.lines.append(f"    index = tl.int64 if {most} >= {LIMIT} else tl.int32")

    def launch(self, one: PrintedStage) -> None:
        """Print a launch."""
        sign = " + " if one.is_sum else " * "
        dims = [dim for blocks in one.grid for dim, _ in blocks]
        if one.is_sum:
            dims = [sum(dims, start=0)]
        if any(dim == 0 for dim in dims):
            return
        indent = "    "
        symbolic = [f"{python_source(dim)} > 0" for dim in dims if not isinstance(dim, int)]
        if symbolic:
            self.lines.append(f"    if {' and '.join(symbolic)}:")
            indent += "    "
        sides = [sign.join(_blocks(dim, block) for dim, block in side) for side in one.grid]
        grid = ", ".join(sides) + ("," if len(sides) == 1 else "")
        arguments = [self._argument(p.stands_for) for p in one.parameters]
        constants = [
            f"{name}={self.spelled.get(name, value)}" for name, value in one.constants.items()
        ]
        options = [f"{name}={value}" for name, value in one.options.items()]
        self.lines.append(f"{indent}{one.name}[({grid})](")
        if arguments:  # There are none where nothing of a kernel is stored.
            self.lines.append(f"{indent}    {', '.join(arguments)},")
        self.lines.append(f"{indent}    {', '.join([*constants, *options])},")
        self.lines.append(f"{indent})")

    def _argument(self, stands_for: Buffer | Dim | None) -> str:
        if stands_for is None:
            return "failures"
        if isinstance(stands_for, Buffer):
            return self.names[stands_for]
        return python_source(stands_for)


def _blocks(rows: Dim, block: int) -> str:
    if block == 1:
        return python_source(rows)
    if isinstance(rows, int):
        return str(-(-rows // block))
    return f"triton.cdiv({python_source(rows)}, {block})"
