"""Check the Triton kernels that compiled functions launch, one by one, or only collect them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch

import lynx.generators
from lynx.backends.reference import run_kernel
from lynx.backends.triton import launches
from lynx.backends.triton.attention import print_attention
from lynx.backends.triton.interpreter import InterpretedKernel
from lynx.backends.triton.matmul import contraction_of
from lynx.backends.triton.module import PrintedModule, print_module, print_product_module
from lynx.ir.dims import evaluate
from lynx.ir.kernel import Kernel
from lynx.ir.native import Launch, LaunchRequest


@dataclass
class Checks:
    """How many kernels were launched, and which distinct ones were checked."""

    launched: int = 0
    checked: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)


CHECKS = Checks()
"""Shared by all tests of a process, so that each distinct kernel is interpreted once."""


@contextmanager
def checked_kernels() -> Iterator[Checks]:
    """Run each distinct kernel by Triton's interpreter, against the interpreter of the kernel IR.

    Kernels that were checked before run by the latter alone, which is much faster.
    """

    class Checked(InterpretedKernel):
        def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
            CHECKS.launched += 1
            sizes = dict(zip(self.kernel.symbols, values, strict=True))
            memory = memory_of(self.kernel, tensors, sizes)
            key = (text_of(self.printed), tuple(values))
            if key in CHECKS.checked:
                run_kernel(self.kernel, memory, sizes)
                return
            wanted = [tensor.clone() for tensor in memory]
            run_kernel(self.kernel, wanted, sizes)
            super().launch(tensors, values)
            compare(self.kernel, memory, wanted)
            CHECKS.checked[key] = self.kernel.name

    with patch.object(launches, "InterpretedKernel", Checked):
        yield CHECKS


def text_of(printed: PrintedModule) -> str:
    """Return the text of a module without comments, which name places in models."""
    return re.sub(r"^\s*#.*\n", "", printed.text, flags=re.MULTILINE)


def memory_of(
    kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: dict[str, int]
) -> list[torch.Tensor]:
    """Return the memory of each buffer as a flat tensor."""
    return [
        tensor.data.as_strided((evaluate(buffer.extent, sizes),), (1,))
        for tensor, buffer in zip(tensors, kernel.buffers, strict=True)
    ]


def compare(kernel: Kernel, actual: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Assert that what a kernel has written is what it should have."""
    for buffer, got, want in zip(kernel.buffers, actual, wanted, strict=True):
        if not buffer.is_written or not want.numel():
            continue
        low = want.dtype in (torch.bfloat16, torch.float16)
        error = 2e-2 if low else 1e-4
        scale = float(want.double().abs().nan_to_num(0, 0, 0).max())
        torch.testing.assert_close(
            got,
            want,
            rtol=error,
            atol=error * max(scale, 1e-3),
            equal_nan=True,
            msg=lambda text, name=f"{kernel.name} {buffer.name}": f"{name}: {text}",
        )


@contextmanager
def collected_kernels() -> Iterator[dict[str, PrintedModule]]:
    """Collect the modules of all kernels of what is compiled, by their text; torch computes.

    Products of matrices give their tiled module.
    """
    found: dict[str, PrintedModule] = {}

    def compiled(requests: tuple[LaunchRequest, ...]) -> tuple[Launch, ...]:
        for request in requests:
            if request.attention is not None:
                printed = print_attention(request.attention).printed
                found[text_of(printed)] = printed
                continue
            contraction = contraction_of(request.kernel) if request.product is not None else ""
            if isinstance(contraction, str):
                printed = print_module(request.kernel)
            else:
                printed = print_product_module(contraction)
            found[text_of(printed)] = printed
        return tuple(Launch(_refuse, r.kernel.symbols, "") for r in requests)

    with patch.object(lynx.generators, "_launch_compiler", lambda *_: compiled):
        yield found


def _refuse(*arguments: object) -> bool:
    return False
