"""Which back end makes the kernels of a program, and for which machine."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from lynx.backends.c import compile_segments, has_compiler, low_precision_products
from lynx.ir.core import Graph
from lynx.ir.native import Launcher, SegmentCompiler
from lynx.ir.native_verifier import verified, verified_launcher
from lynx.ir.ops.linear import AddMatmul, MatrixProduct
from lynx.ir.program import Program
from lynx.ir.types import DType
from lynx.passes import Target
from lynx.passes.products import LIBRARY

from .accelerator import accelerator, accelerator_of
from .cache import open_store
from .records import RECORDS
from .settings import Settings
from .target import this_machine

try:
    from lynx.backends import triton as _triton
except ImportError:  # there is none for this system: GPUs run through torch
    _triton: Any = None  # type: ignore[no-redef]


def target_of(graph: Graph, cpu_kernels: str = "c") -> Target:
    """Return the machine that a graph runs on: the first GPU among its devices, or this CPU.

    Kernels of CPU tensors are made by C, by Triton as if the CPU were a GPU, or by none.
    """
    device = accelerator_of(graph)
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    has_triton = _triton is not None
    if device:
        target = accelerator(device, has_triton=has_triton)
        return dataclasses.replace(target, is_deterministic=is_deterministic)
    if cpu_kernels == "triton":
        return Target(
            generates_code=True, launches=True, has_attention=has_triton,
            is_deterministic=is_deterministic,
        )  # fmt: skip
    has_code = cpu_kernels == "c" and has_compiler()
    return dataclasses.replace(this_machine(), generates_code=has_code, has_attention=has_code)


def attention_devices(settings: Settings) -> tuple[str, ...]:
    """Return the types of devices for which there are kernels that compute attention as a whole."""
    if settings.attention != "auto":
        return ()
    makers = {"c": has_compiler(), "triton": _triton is not None}
    on_cpu = ("cpu",) if makers.get(settings.cpu_kernels) else ()
    return (*on_cpu, "cuda") if _triton is not None else on_cpu


def generator_of(target: Target, settings: Settings) -> SegmentCompiler | Launcher | None:
    """Return what compiles kernels for a target, None if all runs through torch."""
    if not target.generates_code:
        return None
    if target.launches:
        launcher = Launcher(target.device, _launch_compiler(target, settings))
        return verified_launcher(launcher) if settings.verify else launcher
    compiler = functools.partial(
        compile_segments, store=open_store(settings), products=settings.products
    )
    return verified(compiler) if settings.verify else compiler


def multiplied_by(target: Target, settings: Settings, program: Program) -> frozenset[DType]:
    """Return the types of the matrices that the segments of a program multiply."""
    if not target.has_products or not target.generates_code or target.launches:
        return frozenset()
    products = (s.op for s in program.steps if isinstance(s.op, MatrixProduct | AddMatmul))
    if all(op.out.tensor_type.dtype is not DType.BF16 for op in products):
        return LIBRARY
    return LIBRARY | low_precision_products(settings.products, open_store(settings))


def _launch_compiler(target: Target, settings: Settings) -> Any:
    return _triton.LaunchCompiler(
        is_interpreted=target.device == "cpu",
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        is_strict=settings.strict,
        tunes=settings.autotune,
        allow_tf32=torch.get_float32_matmul_precision() != "highest",
        store=open_store(settings),
        warn=RECORDS.warn,
    )


def raise_arrived() -> None:
    """Raise `IndexError` if a check of a kernel on a GPU failed, as far as that is known by now."""
    if _triton is not None:
        _triton.raise_arrived()


def why_none(target: Target, settings: Settings) -> str:
    """Return why no kernels are generated for a target, empty if they are or shall not be."""
    if target.generates_code or settings.cpu_kernels == "none":
        return ""
    if target.device == "cpu":
        return "lynx found no C compiler (gcc, cc or clang): all ops run through torch"
    if _triton is None:
        return "lynx found no Triton: all ops on GPUs run through torch"
    return f"lynx has no kernels for {target.device} {target.architecture}: all runs through torch"
