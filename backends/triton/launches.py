"""Compile kernels for the runtime, many at once; one that the device refuses is left to torch."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lynx.ir.errors import CompileError, LynxError
from lynx.ir.kernel import Kernel, Load
from lynx.ir.native import AttentionBackwardCall, AttentionCall, Launch, LaunchRequest
from lynx.ir.store import ArtifactStore

from .attention import AttentionOptions
from .attention_launch import attention_kernel
from .autotune import (
    Measure,
    TunedKernel,
    Tuner,
    device_time,
    is_worth_tuning,
    loaded,
    wall_time,
)
from .interpreter import InterpretedAttention, InterpretedKernel
from .launch import Launchable
from .module import PrintedModule, print_module
from .precompile import precompile
from .products import ProductKernel, library_product


class KernelLaunchError(CompileError):
    """Kernels that could not be printed or compiled; the rest of a program can do without them."""

    def __init__(self, message: str, kernels: tuple[Kernel, ...]) -> None:
        super().__init__("kernel-build", message)
        self.kernels = kernels


def _ignore(message: str) -> None:
    del message


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel that has a form: the modules to compile, and what will be launched."""

    request: LaunchRequest
    modules: tuple[PrintedModule, ...]
    symbols: tuple[str, ...]
    inner: Launchable
    is_safe: bool

    @property
    def source(self) -> str:
        """The text of all modules."""
        return "\n".join(module.text for module in self.modules)


@dataclass(frozen=True)
class LaunchCompiler:
    """Compiles kernels: all that a program needs, side by side.

    With `is_interpreted` they run on CPU tensors in Triton's interpreter. With `is_deterministic`
    floating sums into memory run in a fixed order. With `tunes` schedules are measured when kernels
    are launched first, and remembered in `store`; products of matrices compete with the library,
    and may round `f32` to `tf32` if `allow_tf32` says so. `warn` hears of each kernel that the
    device refuses when it is launched, once; with `is_strict` that raises.
    """

    is_interpreted: bool = False
    is_deterministic: bool = False
    is_strict: bool = False
    tunes: bool = False
    allow_tf32: bool = False
    store: ArtifactStore | None = None
    measure: Measure | None = None
    warn: Callable[[str], None] = field(default=_ignore)

    def __call__(self, requests: tuple[LaunchRequest, ...]) -> tuple[Launch, ...]:
        """Return the launches; `KernelLaunchError` names kernels that do not build."""
        built: list[Built] = []
        failed: dict[Kernel, str] = {}
        for request in requests:
            try:
                built.append(self._built(request))
            except LynxError as error:
                name = request.kernel.name
                failed[request.kernel] = f"kernel '{name}' has no Triton form: {error}"
        if not self.is_interpreted:
            for one, wrong in _precompiled(built):
                failed[one.request.kernel] = refusal(one.request.kernel, one.source, wrong)
        if failed:
            raise KernelLaunchError("; ".join(failed.values()), tuple(failed))
        return tuple(map(self._launch, built))

    def _built(self, request: LaunchRequest) -> Built:
        kernel = request.kernel
        if request.attention is not None:
            return self._attention(request, request.attention)
        if request.product is not None:
            product = library_product(
                request.product, kernel, is_deterministic=self.is_deterministic
            )
            multiplies = ProductKernel(kernel, product, self._made, self._tuner(), self.allow_tf32)
            modules = tuple(part.printed for part in product.parts)
            return Built(request, modules, product.symbols, multiplies, is_safe=True)
        printed = print_module(kernel, is_deterministic=self.is_deterministic)
        tuner = self._tuner()
        inner: Launchable
        if tuner is not None and is_worth_tuning(kernel):
            inner = TunedKernel(kernel, printed, tuner, self.is_deterministic)
        else:
            inner = self._made(kernel, printed)
        is_safe = len(printed.stages) == 1 or not _writes_over_operands(kernel)
        return Built(request, (printed,), kernel.symbols, inner, is_safe)

    def _attention(
        self, request: LaunchRequest, call: AttentionCall | AttentionBackwardCall
    ) -> Built:
        options = AttentionOptions(
            self.is_deterministic, self.allow_tf32, torch.version.hip is not None
        )
        make = InterpretedAttention if self.is_interpreted else loaded
        tuner = self._tuner()
        inner = attention_kernel(call, options, make, self.warn, tuner, request.device)
        # Whatever was written of results is written again.
        return Built(request, (inner.printed,), inner.kernel.symbols, inner, is_safe=True)

    def _tuner(self) -> Tuner | None:
        if not self.tunes:
            return None
        measure = self.measure or (wall_time if self.is_interpreted else device_time)
        name = "interpreter" if self.is_interpreted else ""
        return Tuner(self.store, measure, name, self._made)

    def _made(self, kernel: Kernel, printed: PrintedModule) -> Launchable:
        if self.is_interpreted:
            return InterpretedKernel(kernel, printed)
        return loaded(kernel, printed)

    def _launch(self, built: Built) -> Launch:
        kernel = built.request.kernel
        can_fall_back = built.is_safe and not self.is_strict
        guarded = GuardedLaunch(kernel, built.source, built.inner, self.warn, can_fall_back)
        return Launch(guarded, built.symbols, built.source)


def _precompiled(built: Sequence[Built]) -> Iterator[tuple[Built, Exception]]:
    """Compile all modules for their devices; yield what did not work."""
    jobs = [(one, module) for one in built for module in one.modules]
    errors = precompile([(module, one.request.device) for one, module in jobs])
    for (one, _), error in zip(jobs, errors, strict=True):
        if error is not None:
            yield one, error


@dataclass(eq=False)
class GuardedLaunch:
    """Launches a kernel, until the device refuses it once.

    Kernels are compiled before they are launched, but a tensor that is not aligned, or larger than
    those before, makes Triton compile once more, and a launch may ask for more than there is. What
    is refused has written nothing, unless the kernel is several launches and one of them went;
    `can_fall_back` says that torch may begin anew all the same.
    """

    kernel: Kernel
    source: str
    inner: Launchable
    warn: Callable[[str], None]
    can_fall_back: bool = True
    is_refused: bool = False

    def __call__(self, tensors: Sequence[torch.Tensor], *values: int) -> bool:
        """Launch; return whether that was possible."""
        if self.is_refused:
            return False
        try:
            self.inner.launch(tensors, values)
        except (IndexError, torch.OutOfMemoryError):
            raise  # the user's index, and the user's memory
        except Exception as error:  # whatever Triton or the driver may raise
            self.is_refused = True
            message = refusal(self.kernel, self.source, error)
            if not self.can_fall_back:
                raise KernelLaunchError(message, (self.kernel,)) from error
            self.warn(f"lynx runs a part of a graph through torch: {message}")
        return not self.is_refused


def _writes_over_operands(kernel: Kernel) -> bool:
    read = {one.buffer for one in kernel.body if isinstance(one, Load)}
    return any(buffer.is_written and buffer in read for buffer in kernel.buffers)


def refusal(kernel: Kernel, source: str, error: Exception) -> str:
    """Return why a kernel does not run, in one line, and where its source is kept."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"lynx-failed-{digest}.py")
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:1000]
    try:
        path.write_text(source, encoding="utf-8")
    except OSError:
        return f"kernel '{kernel.name}' does not run: {reason}"
    return f"kernel '{kernel.name}' does not run: {reason}, source kept in {os.fspath(path)}"
