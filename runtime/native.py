"""The native part of a program: segments or launches, what they were compiled to, what is left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lynx.ir.core import Value
from lynx.ir.dims import is_static
from lynx.ir.errors import LynxError
from lynx.ir.kernel import Kernel
from lynx.ir.native import (
    Launch,
    Launcher,
    NativeFunction,
    SegmentCompiler,
    kernels_in,
)
from lynx.ir.ops.aten import Resource, Symbolic
from lynx.ir.program import Program, sources
from lynx.ir.types import DType
from lynx.passes.base import Remark
from lynx.passes.products import LIBRARY

from .attention import AttentionStep
from .places import Places
from .segments import KernelStep, NativeSteps, PlacedSegment, form_segments


@dataclass
class NativeProgram:
    """The segments of a program with the functions that run them, or its kernels with the launches.

    `steps` are the indices of all steps that are no call by tensors, among them the `empty` ones
    that have nothing to do; `last` maps the last step of each segment to the segment, by indices.
    `launched` are the kernels that the host launches, by the index of their steps. `needed` are the
    values that must exist as tensors; `places` tells where the others lie. `remarks` says what was
    refused, and `failures` what did not build.
    """

    program: Program
    places: Places
    empty: set[int] = field(default_factory=set)
    segments: tuple[PlacedSegment, ...] = ()
    functions: tuple[NativeFunction, ...] = ()
    launched: dict[int, tuple[KernelStep | AttentionStep, Launch]] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = self.empty.union(*(placed.steps for placed in self.segments))
        self.last = {placed.steps[-1]: n for n, placed in enumerate(self.segments)}
        self.needed = _needed(self)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of all segments and launches, each once, in order of first use."""
        calls = [call for placed in self.segments for call in placed.segment.calls]
        called = [kernel for call in calls for kernel in kernels_in(call)]
        launched = [kernel for step, _ in self.launched.values() for kernel in step.kernels]
        return list(dict.fromkeys([*called, *launched]))

    @property
    def source(self) -> str:
        """The text that was compiled."""
        texts = [function.source for function in self.functions]
        texts += [launch.source for _, launch in self.launched.values()]
        return "\n".join(dict.fromkeys(texts))


_Made: TypeAlias = Mapping[str, Any]
"""Fields of a `NativeProgram` that a back end has made."""


def compile_native(
    program: Program,
    resources: Mapping[str, Any],
    native: SegmentCompiler | Launcher | None,
    *,
    products: frozenset[DType] = LIBRARY,
) -> NativeProgram:
    """Compile the kernels of a program, and its products of matrices of the types `products`.

    A kernel that does not build is left to torch, and the rest is tried again; whatever else goes
    wrong leaves all of it to torch.
    """
    places = Places(program, resources)
    if native is None:
        return NativeProgram(program, places)
    make: Callable[[NativeSteps], _Made]
    if isinstance(native, Launcher):
        steps = NativeSteps(
            program, places, device=native.device, products=frozenset(), attends=True
        )
        make = functools.partial(_launches, launcher=native)
    else:
        steps = NativeSteps(program, places, products=products)
        make = functools.partial(_segments, compiler=native)
    remarks = steps.refused
    failures: list[str] = []
    while steps.found:
        try:
            made = make(steps)
        except (LynxError, OSError) as error:
            failures.append(str(error))
            dropped = steps.exclude(getattr(error, "kernels", ()))
            if not dropped:
                break
            for op in dropped:
                message = f"did not build, runs through torch: {error}"
                remarks.append(Remark("kernel", message, op.loc))
            continue
        return NativeProgram(
            program, places, steps.empty, remarks=remarks, failures=failures, **made
        )
    return NativeProgram(program, places, steps.empty, remarks=remarks, failures=failures)


def _segments(steps: NativeSteps, compiler: SegmentCompiler) -> _Made:
    segments = form_segments(steps)
    functions = compiler(tuple(placed.segment for placed in segments))
    return {"segments": segments, "functions": functions}


def _launches(steps: NativeSteps, launcher: Launcher) -> _Made:
    """Compile each kernel once for each device."""
    kinds = (KernelStep, AttentionStep)
    kernels = {n: step for n, step in steps.found.items() if isinstance(step, kinds)}
    requests = {index: step.request for index, step in kernels.items()}
    distinct = tuple(dict.fromkeys(requests.values()))
    launches = dict(zip(distinct, launcher.compile(distinct), strict=True))
    return {"launched": {n: (step, launches[requests[n]]) for n, step in kernels.items()}}


def _needed(native: NativeProgram) -> set[Value]:
    """Return the values that torch, or a caller, gets as tensors."""
    program = native.program
    needed = {output for output in program.graph.outputs if output is not None}
    needed.update(w.mutation.value for w in program.writes if w.kind in ("copy", "snapshot"))
    for place in program.returns:
        needed.update(place.unshare)
    for placed in native.segments:
        needed.update(placed.tensors)
    for index in reversed(range(len(program.steps))):
        step = program.steps[index]
        if index in native.steps:
            for value, placement in zip(step.op.results, step.placements, strict=True):
                if value in needed:
                    needed.update(_made_from(native.places, value, sources(placement)))
        elif native.places.is_view(step.op):
            if step.op.out in needed:
                needed.update(_made_from(native.places, step.op.out, step.op.operands[:1]))
        elif not isinstance(step.op, Resource | Symbolic):
            needed.update(step.op.operands)
            needed.update(step.op.results)
    return needed


def _made_from(places: Places, value: Value, below: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the tensors that it takes to make that of a value which lies in those `below`."""
    place = places.anchor(value)
    if place is None:
        return below
    is_fixed = is_static((*value.shape, *place.strides, place.offset))
    return () if is_fixed else (place.root,)
