"""Turn a program into something that runs: compile its source, give it arenas, guard each call."""

from __future__ import annotations

import itertools
import linecache
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lynx.ir.native import Launcher, SegmentCompiler
from lynx.ir.program import Program, aligned
from lynx.ir.types import DType
from lynx.passes.plan_memory import BufferGroup, MemoryReport, memory_report
from lynx.passes.products import LIBRARY

from .arena import SHARED_BLOCKS, BlockPool, SavedArena, TemporaryArena
from .arena_source import ArenaSource
from .native import NativeProgram, compile_native
from .source import CallOf, Source, write_source
from .torch_internals import set_grad_enabled

MAX_PLANS = 64
"""How many combinations of sizes, and of size classes, a program remembers for each arena."""

_COUNTER = itertools.count()


class Executable:
    """A compiled program. Call it with a list of arguments, which it clears; it gives a tuple.

    `source` is the Python text that runs, `program` what it was made from, `memory_report` what the
    memory plan takes. Calls may overlap, in threads and by recursion. Memory of temporary tensors
    is kept for the next call of any program, see `release_memory`.

    `native` is what back ends compiled: its `segments`, `launched`, `kernels`, `source`, and in
    `remarks` and `failures` what was not.
    """

    _boxed_call = True

    def __init__(
        self, program: Program, source: Source, pool: BlockPool, native: NativeProgram
    ) -> None:
        self.program = program
        self.source = source.text
        self.native = native
        self.memory_report: MemoryReport = memory_report(program)
        self._saved: list[SavedArena] = []
        namespace = dict(source.globals)
        filename = f"<lynx {program.name} {next(_COUNTER)}>"
        exec(compile(source.text, filename, "exec"), namespace)
        for arena in source.arenas:
            self._connect(arena, namespace, pool)
        self._run: Callable[[list[Any]], tuple[Any, ...]] = namespace[source.entry]
        # Tracebacks show the generated line, with the user's place in the comment above it.
        lines = source.text.splitlines(keepends=True)
        linecache.cache[filename] = (len(source.text), None, lines, filename)
        weakref.finalize(self, linecache.cache.pop, filename, None)

    def _connect(self, arena: ArenaSource, namespace: dict[str, Any], pool: BlockPool) -> None:
        """Give the generated program one of its arenas."""
        device = arena.group.device
        plan = _Plans(arena.group, namespace.get(arena.sizes))
        if arena.group.saved:
            saved = SavedArena(device, plan, namespace[arena.maker])
            self._saved.append(saved)
            namespace[arena.take] = saved.take
            return
        temporary = TemporaryArena(device, plan, namespace[arena.maker], pool)
        namespace[arena.take] = temporary.take
        namespace[arena.give] = temporary.give
        weakref.finalize(self, pool.forget, temporary.program)

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the program. What an op raises passes through; the next call works."""
        if not torch.is_grad_enabled():
            return self._run(args)
        set_grad_enabled(False)  # a context manager would take longer than a small program
        try:
            return self._run(args)
        finally:
            set_grad_enabled(True)

    def release(self) -> None:
        """Let go of the memory kept for tensors that backward needs."""
        for saved in self._saved:
            saved.release()


def build(
    program: Program,
    call_of: CallOf,
    *,
    resources: Mapping[str, Any] | None = None,
    pool: BlockPool = SHARED_BLOCKS,
    native: SegmentCompiler | Launcher | None = None,
    products: frozenset[DType] = LIBRARY,
) -> Executable:
    """Return the executable of a program.

    `call_of` says how the back end runs an op, `resources` holds the constants of the graph (those
    of the program itself if None). Programs with one `pool` share the memory of their temporary
    tensors. With `native`, fused ops are compiled and, into segments, products of matrices of these
    types; what does not build runs as `call_of` says.
    """
    given = program.resources if resources is None else resources
    compiled = compile_native(program, given, native, products=products)
    source = write_source(program, call_of, given, compiled)
    return Executable(program, source, pool, compiled)


def release_memory() -> None:
    """Free the idle memory that all programs share."""
    SHARED_BLOCKS.release()


class _Plans:
    """Offsets for the sizes of one arena, planned once for each class of sizes.

    A size is rounded up to an eighth of its power of two, so that neighbouring batch sizes have one
    plan, at the price of at most an eighth more memory.
    """

    def __init__(self, group: BufferGroup, sizes: Callable[..., tuple[int, ...]] | None) -> None:
        self._group = group
        self._sizes = sizes
        self._by_symbols: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        self._by_class: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        self._lock = threading.Lock()
        self._fixed: tuple[tuple[int, ...], int] | None = None
        if sizes is None:  # shapes may depend on symbols all the same, if another size is 0
            offsets = tuple(buffer.placement.offset or 0 for buffer in group.buffers)
            self._fixed = (offsets, self._top(offsets))

    def _top(self, offsets: tuple[int, ...]) -> int:
        # A whole number of elements of every type: some operators look at all of a memory.
        pairs = zip(offsets, self._group.sizes, strict=True)
        return aligned(max((offset + size for offset, size in pairs), default=0))

    def __call__(self, symbols: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the offsets of the buffers and the size of the arena."""
        return self._fixed or self._by_symbols.get(symbols) or self._plan(symbols)

    def _plan(self, symbols: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        assert self._sizes is not None, symbols
        classes = tuple(map(size_class, self._sizes(*symbols)))
        with self._lock:
            plan = self._by_class.get(classes)
            if plan is None:
                packing = self._group.pack_sizes(classes)
                plan = (packing.offsets, aligned(packing.peak))
                _remember(self._by_class, classes, plan)
            _remember(self._by_symbols, symbols, plan)
        return plan


def _remember(table: dict[Any, Any], key: Any, value: Any) -> None:
    if len(table) >= MAX_PLANS:
        del table[next(iter(table))]
    table[key] = value


def size_class(size: int) -> int:
    """Round a number of bytes up to a multiple of an eighth of the power of two below it."""
    step = max(1, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
