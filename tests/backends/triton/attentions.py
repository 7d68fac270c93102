"""Run attentions through the Triton back end, in the interpreter or on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from lynx.backends.triton.attention import AttentionOptions, print_attention
from lynx.backends.triton.attention_writer import Tiles
from lynx.backends.triton.autotune import loaded
from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.ir.dims import evaluate
from tests.backends.c.attentions import (
    Example,
    Gradients,
    Memory,
    backward_call,
    forward_call,
    gradients_of,
    reference_gradients,
    results,
)

DEFAULT = AttentionOptions()
SMALL = Tiles(16, 16, 4, 2)
"""Tiles with which small examples have several blocks of queries and keys."""

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2.5e-3}


@dataclasses.dataclass
class Run:
    """An example with its memory, and what its calls have to give."""

    example: Example
    backward: bool = True
    with_grad_lse: bool = True
    memory: Memory = dataclasses.field(default_factory=Memory)
    found: Gradients = dataclasses.field(default_factory=Gradients)

    def __post_init__(self) -> None:
        example = self.example
        self.operands = example.tensors()
        self.out, self.lse = results(example)
        forward = forward_call(example, self.memory, *self.operands, self.out, self.lse)
        self.calls: list[Any] = [forward]
        generator = torch.Generator().manual_seed(3)
        self.grad_out = torch.randn(self.out.shape, generator=generator).to(self.out.dtype)
        self.grad_lse = torch.randn(self.lse.shape, generator=generator).to(self.lse.dtype)
        if self.backward:
            self.found = gradients_of(example, *self.operands)
            grads = (self.grad_out, self.grad_lse if self.with_grad_lse else None)
            self.calls.append(backward_call(example, self.memory, forward, *grads, self.found))

    def interpret(
        self,
        interpreter: TritonInterpreter,
        tiles: Tiles | None = SMALL,
        sizes: Mapping[str, int] | None = None,
        options: AttentionOptions = DEFAULT,
    ) -> None:
        """Run all calls in the interpreter."""
        for call in self.calls:
            made = print_attention(call, options, tiles)
            buffers = made.kernel.buffers
            flat = [
                tensor.as_strided((evaluate(buffer.extent, sizes or {}),), (1,))
                for tensor, buffer in zip(self.memory.tensors, buffers, strict=False)
            ]
            values = [(sizes or {})[symbol] for symbol in made.kernel.symbols]
            interpreter.run_module(made.printed, flat, values)

    def launch(self, options: AttentionOptions = DEFAULT) -> None:
        """Run all calls on the GPU of this machine, on copies, and bring the results back."""
        memory = [_copy(tensor) for tensor in self.memory.tensors]
        for call in self.calls:
            made = print_attention(call, options)
            count = len(made.kernel.buffers)
            loaded(made.kernel, made.printed).launch(memory[:count], [])
        for tensor, copy in zip(self.memory.tensors, memory, strict=True):
            if 0 not in tensor.stride():
                tensor.copy_(copy)

    def compare(self, loose: float = 1.0) -> None:
        """Compare all results with torch's in double precision."""
        example = self.example
        expected, logarithms = example.reference(*self.operands)
        tolerance = TOLERANCE[example.dtype] * loose
        is_close(self.out, expected, tolerance)
        is_close(self.lse, logarithms, TOLERANCE[torch.float32] * loose)
        if not self.backward:
            return
        grads = (self.grad_out, self.grad_lse if self.with_grad_lse else None)
        for name, grad in reference_gradients(example, *self.operands, *grads).items():
            is_close(self.found.all()[name], grad, 3 * tolerance)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    if 0 in tensor.stride():
        flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,))
        return flat.cuda().as_strided(tensor.shape, tensor.stride())
    return made.copy_(tensor)


def is_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare with a tolerance relative to the largest number; NaN and infinities are equal."""
    found, expected = found.double(), expected.double()
    finite = expected[expected.isfinite()]
    scale = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale, equal_nan=True)
