"""Compile segments: one C function for each, which runs kernels and matrix products in order."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Kernel
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    KernelCall,
    NativeFunction,
    Pointer,
    ProductCall,
    Segment,
)
from lynx.ir.store import ArtifactStore
from lynx.ir.types import DType

from . import attention, attention_calls, gemm, library
from .attention_calls import NO_MEMORY
from .compiler import BuildError, Compiler, build, check, find_compiler, key_of
from .integers import division_text
from .math import helpers_text
from .prelude import PRODUCTS, RUNTIME, STEP, TYPES
from .printer import Message
from .products import product_lines
from .schedule import PARTS
from .steps import Barriers, Functions, KernelSteps, Step, steps_of
from .text import dim, product_text

VERSION = "2"
"""Part of the key of what is stored; a new one when the way of calling a library changes."""

KERNELS_PER_UNIT = 8
"""Functions up to which one file compiles faster than two."""

PARTIAL_LIMIT = 64
"""Chunks with partial results at most: enough for any common number of threads."""

Attention = AttentionCall | AttentionBackwardCall
"""What runs in a file of its own."""


class KernelBuildError(CompileError):
    """Kernels that could not be printed or compiled; the rest of a program can do without them.

    `path` is the file that holds the source, if there is one.
    """

    def __init__(self, message: str, kernels: tuple[Kernel, ...], path: Path | None) -> None:
        place = f", source kept in {path}" if path is not None else ""
        super().__init__("kernel-build", f"{message}{place}")
        self.kernels = kernels
        self.path = path


def compile_segments(
    segments: tuple[Segment, ...],
    *,
    store: ArtifactStore | None = None,
    compiler: str | None = None,
    units: int = 2,
    products: str = "auto",
) -> tuple[NativeFunction, ...]:
    """Compile the segments of a program together, or load what a store has of them.

    `compiler` is a name or a path; without it the first that is found is taken. Large programs are
    compiled in as many as `units` pieces at once. `products` says who multiplies matrices, one of
    `gemm.PRODUCTS`. Raises `KernelBuildError` with the kernels at
    fault, and `CompileError` with code "no-compiler".
    """
    if not segments:
        return ()
    program = Program()
    program.print(segments)
    sources = program.sources(units)
    loaded = _load(program, sources, find_compiler(compiler), store, products)
    text = "\n".join(sources)
    messages = tuple(program.messages)
    return tuple(
        NativeFunction(library.function_of(loaded, f"lynx_segment{number}"), messages, text)
        for number in range(len(segments))
    )


def _load(
    program: Program,
    sources: tuple[str, ...],
    compiler: Compiler,
    store: ArtifactStore | None,
    products: str,
) -> ctypes.CDLL:
    # A file is loaded once in a process, so one that multiplies by other functions is another file.
    own = sorted(t.value for t in program.multiplied if gemm.is_wanted(products, t))
    key = key_of(sources, compiler, " ".join((VERSION, *own)))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # The first program of a machine builds the product of matrices, beside its own kernels.
        functions = pool.submit(gemm.addresses, products, program.multiplied, compiler, store)
        if store is not None:
            found = library.find(store, key, functions.result())
            if found is not None:
                return found
        try:
            more = dict.fromkeys(program.attention_sources(), attention.FLAGS)
            contents = build(sources, compiler, more=more)
        except BuildError as error:
            raise _explained(program, sources, compiler, error) from error
    if store is None:
        return library.load(contents, functions.result())
    return library.put(store, key, contents, functions.result())


def _explained(
    program: Program, sources: tuple[str, ...], compiler: Compiler, error: BuildError
) -> CompileError:
    """Find the kernels that do not compile, and keep the source."""
    digest = hashlib.sha256("".join(sources).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"lynx-failed-{digest}.c")
    path.write_text("\n".join(sources))
    failed: dict[Kernel, None] = {}
    log = error.log
    # One that hangs is not asked again and again.
    definitions = [] if error.hung else program.functions.definitions()
    for name, definition in definitions:
        found = check(_unit([definition]), compiler)
        if found is not None:
            failed.update(program.functions.kernels[name])
            log = found
    for call, text in program.attentions.items() if not error.hung else ():
        found = check(attention.named(text.text, "lynx_attention"), compiler)
        if found is not None:
            failed[attention_calls.kernel_of(call)] = None
            log = found
    message = f"the C compiler failed: {log.strip()[-1000:]}"
    return KernelBuildError(message, tuple(failed), path)


def _unit(definitions: list[str], *more: str) -> str:
    body = "\n\n".join(definitions)
    divisions = division_text(body)
    helpers = helpers_text(body + divisions)
    parts = [TYPES, helpers, divisions, STEP, *more[:-1], body, *more[-1:]]
    return "\n".join(part for part in parts if part)


@dataclass(eq=False)
class Program:
    """What is printed for the segments of a program."""

    functions: Functions = field(default_factory=Functions)
    messages: dict[str, int] = field(default_factory=dict)
    bodies: list[str] = field(default_factory=list)
    known: dict[Kernel, KernelSteps] = field(default_factory=dict)
    multiplied: set[DType] = field(default_factory=set)
    attentions: dict[Attention, attention.AttentionText] = field(default_factory=dict)
    attention_names: dict[str, str] = field(default_factory=dict)

    def print(self, segments: tuple[Segment, ...]) -> None:
        """Print all segments; collects all kernels that cannot be printed before it fails."""
        failed: dict[Kernel, CompileError] = {}
        for segment in segments:
            for call in segment.calls:
                try:
                    if isinstance(call, KernelCall) and call.kernel not in self.known:
                        self.known[call.kernel] = steps_of(call.kernel)
                    elif isinstance(call, Attention) and call not in self.attentions:
                        self._enter(call)
                except CompileError as error:
                    failed[attention_calls.kernel_of(call)] = error
        if failed:
            message = "; ".join(dict.fromkeys(error.message for error in failed.values()))
            raise KernelBuildError(message, tuple(failed), None)
        for number, segment in enumerate(segments):
            self.bodies.append(SegmentPrinter(self, segment, number).print())

    def _enter(self, call: Attention) -> None:
        text = attention_calls.attention_text(call)
        self.attentions[call] = text
        self.attention_names.setdefault(text.text, f"lynx_attention{len(self.attention_names)}")

    def attention_sources(self) -> tuple[str, ...]:
        """Return the files with attentions, one for each kind of them."""
        return tuple(attention.named(text, name) for text, name in self.attention_names.items())

    def message(self, text: str) -> int:
        """Return the code of a message."""
        return self.messages.setdefault(text, len(self.messages)) + 1

    def sources(self, units: int) -> tuple[str, ...]:
        """Return the files to compile."""
        definitions = self.functions.definitions()
        bodies = "\n\n".join(self.bodies)
        runtime = [RUNTIME, *([PRODUCTS] if self.multiplied else [])]
        more = self.attention_sources()
        if more:
            names = self.attention_names.values()
            prototypes = [f"i64 {name}_attention(struct attention *);" for name in names]
            runtime += [attention.prelude_text(), *prototypes]
        count = min(units, -(-len(definitions) // KERNELS_PER_UNIT))
        if count <= 1:
            return (_unit([text for _, text in definitions], *runtime, bodies), *more)
        shared = [(name, text.replace("static void ", "void ", 1)) for name, text in definitions]
        declared = "\n".join(
            f"void {name}(const struct step *step, i64 chunk, char *local);" for name, _ in shared
        )
        parts = [[text for _, text in shared[start::count]] for start in range(count)]
        first = _unit(parts[0], *runtime, f"{declared}\n{bodies}")
        return (first, *(_unit(part) for part in parts[1:]), *more)


class SegmentPrinter:
    """Prints one segment: runs of kernels between matrix products."""

    def __init__(self, program: Program, segment: Segment, number: int) -> None:
        self.program = program
        self.segment = segment
        self.number = number
        self.symbols = {name: f"packed[{segment.slots + at}]" for at, name in
                        enumerate(segment.symbols)}  # fmt: skip

    def symbol(self, name: str) -> str:
        """Return where the caller passes a symbol."""
        if name not in self.symbols:
            raise CompileError("kernel-unsupported", f"the segment is not given the symbol {name}")
        return self.symbols[name]

    def pointer(self, pointer: Pointer) -> str:
        """Return the text of an address."""
        text = f"(char *)packed[{pointer.slot}]"
        return text if pointer.offset == 0 else f"{text} + {dim(pointer.offset, self.symbol)}"

    def print(self) -> str:
        """Return the definition of the segment's function."""
        lines = [
            f"/* {self.segment.name.replace('*/', '* /')} */",
            "ENTRY",
            f"i64 lynx_segment{self.number}(const i64 *packed) {{",
            "  i64 failed = 0;",
        ]
        for run in self._runs():
            if isinstance(run, ProductCall):
                self.program.multiplied.add(run.dtype)
                lines += product_lines(run, self.pointer, self.symbol)
            elif isinstance(run, Attention):
                lines += self._attention(run)
            else:
                lines += RunPrinter(self, run).print()
        return "\n".join([*lines, "  return failed;", "}"])

    def _attention(self, call: Attention) -> list[str]:
        text = self.program.attentions[call]
        name = self.program.attention_names[text.text]
        message = self.program.message
        return attention_calls.call_lines(call, text, name, message, self.pointer, self.symbol)

    def _runs(self) -> Iterator[list[KernelCall] | ProductCall | Attention]:
        run: list[KernelCall] = []
        for call in self.segment.calls:
            if isinstance(call, KernelCall):
                run.append(call)
                continue
            if run:
                yield run
            run = []
            yield call
        if run:
            yield run


class RunPrinter:
    """Prints one run of kernels: fills the table of steps, and hands it to the threads."""

    def __init__(self, segment: SegmentPrinter, calls: list[KernelCall]) -> None:
        self.segment = segment
        self.program = segment.program
        self.calls = calls
        self.lines: list[str] = []
        self.pointers: list[str] = []
        self.late: list[str] = []
        self.numbers: list[str] = []
        self.steps = 0
        self.barriers = Barriers(segment.segment.tenancies)
        self.needs_memory = False

    def print(self) -> list[str]:
        """Return the block of statements."""
        for call in self.calls:
            self._call(call)
        if not self.steps:
            return []
        head = [
            "  {",
            f"    struct step t[{self.steps}];",
            f"    void *p[{max(1, len(self.pointers))}];",
            f"    i64 z[{max(1, len(self.numbers))}];",
            "    i64 shared = 0, most = 0;",
            *(f"    p[{at}] = {text};" for at, text in enumerate(self.pointers) if text),
        ]
        tail = [f"    lynx_run(t, {self.steps}, 0);"]
        if self.needs_memory:
            code = self.program.message(NO_MEMORY)
            tail = [
                "    char *memory = lynx_take(shared + most);",
                f"    if (!memory) return {code};",
                *(f"    {line}" for line in self.late),
                f"    lynx_run(t, {self.steps}, memory + shared);",
                "    lynx_give(memory);",
            ]
        return [*head, *(f"    {line}" for line in self.lines), *tail, "  }"]

    def _call(self, call: KernelCall) -> None:
        known = self.program.known[call.kernel]
        first = self.steps
        if call.loc.is_known:
            self.lines.append(f"/* {str(call.loc).replace('*/', '* /')} */")
        names = _Names(self, known, first)
        scratch: dict[Buffer, object] = {}
        offsets: dict[Buffer, str] = {}
        for position, (buffer, points) in enumerate(known.scratch.items()):
            scratch[buffer] = (first, position)
            offsets[buffer] = f"m{first}_{position}"
            if buffer not in names.partial:
                self._reserve(offsets[buffer], names.product([*points, buffer.dtype.itemsize]))
        addresses = dict(zip(call.kernel.buffers, call.buffers, strict=True))
        for step in known.steps:
            barrier = self.barriers.is_needed(step, call, scratch)
            self._step(step, call.kernel, names, barrier, addresses, offsets)

    def _reserve(self, name: str, size: str) -> None:
        self.needs_memory = True
        self.lines.append(f"const i64 {name} = shared; shared += ({size} + 63) & ~63LL;")

    def _step(
        self, step: Step, kernel: Kernel, names: _Names, barrier: bool,
        addresses: dict[Buffer, Pointer], offsets: dict[Buffer, str],
    ) -> None:  # fmt: skip
        at = self.steps
        self.steps += 1
        function = self.program.functions.enter(step.text, kernel)
        units = names.product(step.units)
        if step.blocked is not None:
            size, block = step.blocked
            units = f"({units}) * (({names.dim(size)} + {block - 1}) / {block})"
        points = names.product(step.points)
        limit = "0"
        if step.nest.partials:
            limit = self._partial_limit(step, names, units, points)
        numbers, pointers = len(self.numbers), len(self.pointers)
        self.lines += [
            f"lynx_cut(&t[{at}], {units}, {points}, {limit}, {step.cost});",
            f"t[{at}].run = {function}; t[{at}].p = p + {pointers}; t[{at}].z = z + {numbers};",
            f"t[{at}].failed = &failed; t[{at}].barrier = {int(barrier)}; t[{at}].local = 0;",
        ]
        for parameter in step.text.parameters:
            if isinstance(parameter, Message):
                text = str(self.program.message(parameter.text))
            else:
                text = names.dim(parameter)
            self.lines.append(f"z[{len(self.numbers)}] = {text};")
            self.numbers.append(text)
        for partial in step.nest.partials:
            known = names.known.scratch[partial.buffer]
            size = names.product([*known, partial.buffer.dtype.itemsize])
            self._reserve(offsets[partial.buffer], f"t[{at}].chunks * ({size})")
        for buffer in step.text.buffers:
            if buffer in offsets:
                self.late.append(f"p[{len(self.pointers)}] = memory + {offsets[buffer]};")
                self.pointers.append("")
            else:
                self.pointers.append(self.segment.pointer(addresses[buffer]))
        self._local_memory(step, at, names)

    def _local_memory(self, step: Step, at: int, names: _Names) -> None:
        sizes = [
            f"((({names.product(dims)}) * {itemsize} + 63) & ~63LL)"
            for dims, itemsize in step.text.memory
        ]
        if sizes:
            self.needs_memory = True
            self.lines.append(f"t[{at}].local = {' + '.join(sizes)};")
            self.lines.append(f"most = lynx_max(most, t[{at}].local);")

    def _partial_limit(self, step: Step, names: _Names, units: str, points: str) -> str:
        """Few chunks where the partial results would be as large as what they are made of."""
        largest = "1"
        for partial in step.nest.partials:
            size = names.product(names.known.scratch[partial.buffer])
            largest = f"lynx_max({largest}, {size})"
        share = f"({units}) * ({points}) / (4 * {largest})"
        return f"lynx_max(1, lynx_min({PARTIAL_LIMIT}, {share}))"


class _Names:
    """Values of symbols where a kernel is called, numbers of chunks included."""

    def __init__(self, run: RunPrinter, known: KernelSteps, first: int) -> None:
        self.run = run
        self.known = known
        self.first = first
        self.partial = {e.buffer: None for e in known.plan.scratch if e.number is not None}

    def symbol(self, name: str) -> str:
        if name == PARTS:
            return "(lynx_threads() > 1 ? 2 * lynx_threads() : 1)"
        if name.startswith("#"):
            return f"t[{self.first + self.known.producers[int(name[1:])]}].chunks"
        return self.run.segment.symbol(name)

    def dim(self, value: Dim) -> str:
        return dim(value, self.symbol)

    def product(self, values: list[Dim]) -> str:
        return product_text(values, self.symbol)


@functools.cache
def has_compiler(name: str | None = None) -> bool:
    """Whether there is a C compiler on this machine."""
    try:
        find_compiler(name)
    except CompileError:
        return False
    return True
