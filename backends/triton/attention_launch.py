"""Run attentions by the best of several providers; one that fails gives way to the next, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from lynx.ir.kernel import Kernel
from lynx.ir.native import AttentionBackwardCall, AttentionCall

from .attention import AttentionOptions, print_attention
from .attention_libraries import Attended, libraries_of
from .autotune import Make, Tuner, measurement_key
from .launch import Launchable
from .module import PrintedModule

OURS = "lynx's kernel"
_MOST_REMEMBERED = 1024
"""Sizes for which a choice is remembered."""


@dataclass(frozen=True, eq=False)
class Provider:
    """Something that computes an attention: its name, and for which sizes it does.

    `takes` tells from the values of symbols whether it may be called.
    """

    name: str
    inner: Launchable
    takes: Callable[[Sequence[torch.Tensor], Sequence[int]], bool] = lambda tensors, values: True


@dataclass(eq=False)
class AttentionKernel:
    """Launches an attention by the first provider that takes it, or by the one measured fastest.

    A provider that fails is dropped, and `warn` hears of it. What fails has perhaps written some of
    the results, which the next one writes again; no operand is written. `tuner` measures.
    """

    kernel: Kernel
    printed: PrintedModule
    providers: list[Provider]
    warn: Callable[[str], None]
    tuner: Tuner | None = None
    chosen: dict[tuple[int, ...], Provider] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Run on tensors, one a slot; raises what the last provider raises."""
        while True:
            provider = self.choose(tensors, values)
            try:
                provider.inner.launch(tensors, values)
            except (IndexError, torch.OutOfMemoryError):
                raise  # the user's index, and the user's memory
            except Exception as error:  # whatever a library or the driver may raise
                if provider not in self.providers or len(self.providers) == 1:
                    raise
                self._drop(provider, error)
            else:
                return

    def choose(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> Provider:
        """Return the provider for these sizes; each is asked once whether it takes them."""
        key = tuple(values)
        with self.lock:
            found = self.chosen.get(key)
            if found is None or found not in self.providers:
                found = self._chosen(tensors, values)
                if len(self.chosen) >= _MOST_REMEMBERED:
                    self.chosen.clear()
                self.chosen[key] = found
            return found

    def _chosen(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> Provider:
        able = [one for one in self.providers if one.takes(tensors, values)]
        if not able:
            return self.providers[-1]
        if self.tuner is None or len(able) == 1:
            return able[0]
        return self._fastest(self.tuner, able, tensors, values)

    def _fastest(
        self, tuner: Tuner, able: list[Provider], tensors: Sequence[torch.Tensor],
        values: Sequence[int],
    ) -> Provider:  # fmt: skip
        names = ", ".join(one.name for one in able)
        key = measurement_key(self.printed, f"{tuner.name_of(tensors)} {names}", values)
        # All write the same results, and none changes an operand: they may run on what is given.
        calls = [_call(one.inner, tensors, values) for one in able]
        return able[tuner.fastest(calls, key)]

    def _drop(self, provider: Provider, error: Exception) -> None:
        self.providers.remove(provider)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        self.warn(
            f"lynx computes an attention by {self.providers[0].name}: {provider.name} does not: "
            f"{reason}"
        )


def _call(
    inner: Launchable, tensors: Sequence[torch.Tensor], values: Sequence[int]
) -> Callable[[], None]:
    return lambda: inner.launch(tensors, values)


def attention_kernel(
    call: AttentionCall | AttentionBackwardCall,
    options: AttentionOptions,
    make: Make,
    warn: Callable[[str], None],
    tuner: Tuner | None = None,
    device: str = "cpu",
) -> AttentionKernel:
    """Return what launches an attention on a device; `CompileError` if no kernel can.

    Libraries are asked first: where they compute what is wanted they are faster.
    """
    made = print_attention(call, options)
    providers = [
        Provider(name, _Library(attended, made.kernel.symbols), attended.takes_values)
        for name, attended in libraries_of(call, made.kernel.symbols, options, device)
    ]
    providers.append(Provider(OURS, make(made.kernel, made.printed)))
    return AttentionKernel(made.kernel, made.printed, providers, warn, tuner)


@dataclass(frozen=True, eq=False)
class _Library:
    attended: Attended
    symbols: tuple[str, ...]

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Let the library run."""
        self.attended.launch(tensors, dict(zip(self.symbols, values, strict=True)))
