"""Cut a kernel into stages: parts that one launch each can do, in order, through scratch memory.

All reductions of a stage run over the same axes, its *columns*, inside one program; what a later
stage needs of them goes through scratch memory. A reduction with few results and many numbers is
*split*: each program of its stage combines a part, and a later stage merges the parts. The order of
combination depends on sizes only, so results are the same in every run.
"""

from __future__ import annotations

import itertools

from lynx.ir.dims import Dim, ceil_div, contiguous_strides, product
from lynx.ir.kernel import (
    Buffer,
    Check,
    Index,
    Instruction,
    Kernel,
    KernelAxis,
    KernelBuilder,
    Load,
    Reduce,
    Scalar,
    Store,
    Term,
)

from .combines import lanes_of
from .copying import copied, moved
from .online import merge_sweeps
from .parts import Merge, Partial, Stage, Staged
from .plan import Plan
from .sizes import LIMITS, Limits


def stage(kernel: Kernel, *, is_deterministic: bool = False, limits: Limits = LIMITS) -> Staged:
    """Cut a kernel into stages, as few as its dependences and sizes allow.

    With `is_deterministic`, what is added to memory is added in the order of the points.
    """
    plan = Plan(merge_sweeps(kernel, limits), is_deterministic, limits)
    plan.assign()
    return _Cutter(plan).cut()


class _Cutter:
    """Builds the kernels of the stages."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernel = plan.kernel
        self.scratch: dict[Scalar, Buffer] = {}
        self.partial: dict[Instruction, tuple[Buffer, ...]] = {}
        self.counter = itertools.count()

    def cut(self) -> Staged:
        numbers = range(len(self.plan.drafts))
        slices = [self.plan.slice(number) for number in numbers]
        self._find_scratch(slices)
        stages = tuple(self._stage(number, slices[number]) for number in numbers)
        lanes = [buffer for buffers in self.partial.values() for buffer in buffers]
        return Staged(stages, (*lanes, *self.scratch.values()), self.plan.snapshots)

    def _find_scratch(self, slices: list[list[Instruction]]) -> None:
        for number, instructions in enumerate(slices):
            for instruction in instructions:
                for scalar in instruction.operands:
                    maker = scalar.instruction
                    if not isinstance(maker, Reduce) or scalar in self.scratch:
                        continue
                    if self.plan.merge_of.get(maker, self.plan.stage_of[maker]) != number:
                        self.scratch[scalar] = self._buffer(maker.combine, scalar, ())
        for reduce in self.plan.merge_of:
            assert isinstance(reduce, Reduce)
            draft = self.plan.drafts[self.plan.stage_of[reduce]]
            splits = draft.splits if draft.across is None else draft.across
            assert splits is not None
            lanes = lanes_of(reduce.combine, reduce.x.dtype)
            self.partial[reduce] = tuple(
                Buffer(
                    f"{reduce.combine}{lane.suffix}_parts_{next(self.counter)}",
                    lane.dtype,
                    product((splits, *self._sizes(reduce.result_axes()))),
                    is_written=True,
                )
                for lane in lanes
            )

    def _buffer(self, name: str, scalar: Scalar, leading: tuple[Dim, ...]) -> Buffer:
        extent = product((*leading, *self._sizes(scalar.axes)))
        return Buffer(f"{name}_scratch_{next(self.counter)}", scalar.dtype, extent, is_written=True)

    def _sizes(self, axes: tuple[str, ...]) -> tuple[Dim, ...]:
        return tuple(self.kernel.sizes[axis] for axis in axes)

    def _stage(self, number: int, instructions: list[Instruction]) -> Stage:
        draft = self.plan.drafts[number]
        columns = draft.columns
        axes = [KernelAxis(axis, self.kernel.sizes[axis]) for axis in draft.axes]
        if draft.is_merge:
            assert draft.splits is not None
            columns = (self._split_axis(),)
            axes.append(KernelAxis(columns[0], draft.splits))
        writer = _Writer(self, number, axes)
        if draft.is_merge:
            writer.merge([r for r, n in self.plan.merge_of.items() if n == number], columns[0])
        writer.copy(instructions)
        name = self.kernel.name
        if len(self.plan.drafts) > 1:
            name = f"{name}_{number}"
        rows = tuple(axis.name for axis in axes if axis.name not in columns)
        splits = None if draft.is_merge else draft.splits
        return Stage(
            writer.builder.build(name), rows, columns, splits, draft.is_serial, draft.across
        )

    def _split_axis(self) -> str:
        name = "split"
        while name in self.kernel.sizes:
            name += "_"
        return name


class _Writer:
    """Copies the instructions of one stage, with scratch memory for what crosses its border."""

    def __init__(self, cutter: _Cutter, number: int, axes: list[KernelAxis]) -> None:
        self.cutter = cutter
        self.number = number
        self.builder = KernelBuilder()
        for axis in axes:
            self.builder.axis(axis.name, axis.size)
        self.values: dict[Scalar, Scalar] = {}
        self.known: dict[Buffer, Buffer] = {}
        self.stands_for = {other: mine for mine, other in cutter.plan.snapshots.items()}

    def merge(self, reduces: list[Instruction], axis: str) -> None:
        for reduce in reduces:
            assert isinstance(reduce, Reduce)
            sizes = self.cutter._sizes(reduce.result_axes())
            strides = contiguous_strides((self.builder.axes[axis].size, *sizes))
            index = _index((axis, *reduce.result_axes()), strides)
            self.builder.loc = reduce.loc
            lanes = tuple(
                self.builder.load(self._use(buffer), index)
                for buffer in self.cutter.partial[reduce]
            )
            count = product(self.cutter._sizes(reduce.over))
            splits = self.builder.axes[axis].size
            chunk = ceil_div(count, splits)
            domain = (*reduce.result_axes(), axis)
            merged = Merge(
                domain, reduce.combine, reduce.x.dtype, lanes, (axis,), count, chunk, loc=reduce.loc
            )
            self.builder.body.append(merged)
            self._keep(reduce, merged.results)

    def _keep(self, reduce: Reduce, results: tuple[Scalar, ...]) -> None:
        """Remember results, and store those that later stages need."""
        for old, new in zip(reduce.results, results, strict=True):
            self.values[old] = new
            if old in self.cutter.scratch:
                buffer = self._use(self.cutter.scratch[old])
                strides = contiguous_strides(self.cutter._sizes(old.axes))
                self.builder.store(buffer, _index(old.axes, strides), new)

    def copy(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            self.builder.loc = instruction.loc
            for scalar in instruction.operands:
                if scalar not in self.values:
                    self.values[scalar] = self._from_scratch(scalar)
            self._copy(instruction)

    def _from_scratch(self, scalar: Scalar) -> Scalar:
        buffer = self._use(self.cutter.scratch[scalar])
        strides = contiguous_strides(self.cutter._sizes(scalar.axes))
        return self.builder.load(buffer, _index(scalar.axes, strides))

    def _use(self, buffer: Buffer) -> Buffer:
        if buffer not in self.known:
            self.known[buffer] = buffer
            self.builder.buffers.append(buffer)
        return buffer

    def _copy(self, instruction: Instruction) -> None:
        match instruction:
            case Load():
                self.values[instruction.out] = self._load(instruction)
            case Store() | Check() | Reduce():
                self._copy_root(instruction)
            case _:
                (self.values[instruction.out],) = copied(self.builder, instruction, self.values)

    def _copy_root(self, instruction: Instruction) -> None:
        build, value = self.builder, self.values
        if isinstance(instruction, Store):
            mask = value[instruction.mask] if instruction.mask is not None else None
            buffer, index = self._use(instruction.buffer), moved(instruction.index, self.values)
            build.store(buffer, index, value[instruction.value], mask, instruction.combine)
        elif isinstance(instruction, Check):
            build.check(value[instruction.condition], instruction.message)
        elif instruction in self.cutter.partial:
            assert isinstance(instruction, Reduce)
            buffers = tuple(map(self._use, self.cutter.partial[instruction]))
            x, over = value[instruction.x], instruction.over
            partial = Partial(
                instruction.domain, instruction.combine, x, over, buffers, loc=instruction.loc
            )
            build.body.append(partial)
        else:
            assert isinstance(instruction, Reduce)
            x = value[instruction.x]
            self._keep(instruction, build.reduce(instruction.combine, x, instruction.over))

    def _load(self, load: Load) -> Scalar:
        buffer = load.buffer
        if load in self.cutter.plan.copied_loads:
            buffer = self.stands_for[buffer]
        mask = self.values[load.mask] if load.mask is not None else None
        return self.builder.load(
            self._use(buffer), moved(load.index, self.values), mask, load.other
        )


def _index(axes: tuple[str, ...], strides: tuple[Dim, ...]) -> Index:
    return Index(tuple(Term(axis, stride) for axis, stride in zip(axes, strides, strict=True)))
