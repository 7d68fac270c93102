"""Load a generated module and call it on tensors."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from lynx.ir.kernel import Kernel

from .failures import Failures
from .module import PrintedModule, print_module
from .schedule import Schedule


class Launchable(Protocol):
    """A kernel that can be launched on tensors, with the values of its symbols."""

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Launch on memory that starts at the first elements of these tensors."""
        ...


@dataclass(frozen=True, eq=False)
class TritonKernel:
    """A kernel that can be launched: call it with one tensor a buffer, and the symbols' values.

    A tensor stands for memory that starts at its first element; its shape does not matter. The
    call returns when the launches are queued. A failed check raises `IndexError`, on a GPU in a
    later call (see `failures.py`).
    """

    printed: PrintedModule
    symbols: tuple[str, ...]
    namespace: dict[str, Any] = field(repr=False)
    failures: dict[torch.device, Failures] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """The text of the module."""
        return self.printed.text

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Launch on these tensors, in the order of the kernel's buffers."""
        self.launch(tensors, [sizes[symbol] for symbol in self.symbols])

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Launch on these tensors, with the values of `symbols`."""
        run: Callable[..., None] = self.namespace["run"]
        if not tensors:
            return
        device = tensors[0].device
        with current_device(device):
            self._run(run, tensors, values, device)

    def _run(
        self,
        run: Callable[..., None],
        tensors: Sequence[torch.Tensor],
        values: Sequence[int],
        device: torch.device,
    ) -> None:
        if not self.printed.messages:
            run(*tensors, None, *values)
            return
        failures = self.failures.get(device)
        if failures is None:
            failures = self.failures[device] = Failures(self.printed.messages, device)
        failures.before_call()
        run(*tensors, failures.flags, *values)
        failures.after_call()


def current_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which launches go to a device; nothing to do for the current one."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return _NOTHING
    return torch.cuda.device(device)


_NOTHING = contextlib.nullcontext()


def launchable(
    kernel: Kernel,
    *,
    is_deterministic: bool = False,
    schedules: tuple[Schedule, ...] | None = None,
) -> TritonKernel:
    """Return a kernel that can be launched; Triton compiles it at the first launch.

    With `is_deterministic`, floating sums into memory run in a fixed order. `CompileError` where
    Triton cannot do what the kernel asks for.
    """
    printed = print_module(kernel, is_deterministic=is_deterministic, schedules=schedules)
    return TritonKernel(printed, kernel.symbols, load_module(printed.text, printed.name))


@functools.lru_cache(maxsize=4096)
def load_module(text: str, name: str) -> dict[str, Any]:
    """Run the text of a module and return its names; equal texts are loaded once.

    Triton reads the source of functions through `linecache`, where the text is entered.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    filename = f"<lynx triton {name} {digest}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    namespace: dict[str, Any] = {"__name__": f"lynx_triton_{digest}", "__file__": filename}
    exec(compile(text, filename, "exec"), namespace)
    return namespace
