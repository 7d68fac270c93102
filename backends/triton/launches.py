"""Compile kernels for the runtime, many at once; one that the device refuses is left to torch."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from lynx.ir.errors import CompileError, LynxError
from lynx.ir.kernel import Kernel, Load
from lynx.ir.native import Launch, LaunchRequest

from .interpreter import InterpretedKernel
from .launch import TritonKernel, load_module
from .module import PrintedModule, print_module
from .precompile import precompile


class KernelLaunchError(CompileError):
    """Kernels that could not be printed or compiled; the rest of a program can do without them."""

    def __init__(self, message: str, kernels: tuple[Kernel, ...]) -> None:
        super().__init__("kernel-build", message)
        self.kernels = kernels


class Launchable(Protocol):
    """A kernel that can be launched on tensors, with the values of its symbols."""

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Launch on memory that starts at the first elements of these tensors."""
        ...


def _ignore(message: str) -> None:
    del message


@dataclass(frozen=True)
class LaunchCompiler:
    """Compiles kernels: all that a program needs, side by side.

    With `is_interpreted` they run on CPU tensors in Triton's interpreter. With `is_deterministic`
    floating sums into memory run in a fixed order. `warn` hears of each kernel that the device
    refuses when it is launched, once; with `is_strict` that raises.
    """

    is_interpreted: bool = False
    is_deterministic: bool = False
    is_strict: bool = False
    warn: Callable[[str], None] = field(default=_ignore)

    def __call__(self, requests: tuple[LaunchRequest, ...]) -> tuple[Launch, ...]:
        """Return the launches; `KernelLaunchError` names kernels that do not build."""
        printed: dict[Kernel, PrintedModule] = {}
        failed: dict[Kernel, str] = {}
        for request in requests:
            kernel = request.kernel
            try:
                printed[kernel] = print_module(kernel, is_deterministic=self.is_deterministic)
            except LynxError as error:
                failed[kernel] = f"kernel '{kernel.name}' has no Triton form: {error}"
        if not self.is_interpreted:
            built = [request for request in requests if request.kernel in printed]
            modules = [(printed[request.kernel], request.device) for request in built]
            for request, wrong in zip(built, precompile(modules), strict=True):
                if wrong is not None:
                    text = printed[request.kernel].text
                    failed[request.kernel] = refusal(request.kernel, text, wrong)
        if failed:
            raise KernelLaunchError("; ".join(failed.values()), tuple(failed))
        return tuple(self._launch(request.kernel, printed[request.kernel]) for request in requests)

    def _launch(self, kernel: Kernel, printed: PrintedModule) -> Launch:
        inner: Launchable
        if self.is_interpreted:
            inner = InterpretedKernel(kernel, printed)
        else:
            namespace = load_module(printed.text, printed.name)
            inner = TritonKernel(printed, kernel.symbols, namespace)
        is_safe = len(printed.stages) == 1 or not _writes_over_operands(kernel)
        can_fall_back = is_safe and not self.is_strict
        guarded = GuardedLaunch(kernel, printed.text, inner, self.warn, can_fall_back)
        return Launch(guarded, kernel.symbols, printed.text)


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
