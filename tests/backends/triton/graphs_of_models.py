"""The fused graphs of small models, forward and backward, and their kernels run by Triton."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

import lynx
from lynx.backends.reference import run
from lynx.backends.reference.dtypes import torch_dtype
from lynx.backends.reference.kernels import run_kernel
from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.backends.triton.sizes import LIMITS, Limits
from lynx.inputs import random_inputs
from lynx.ir.core import Graph, Value
from lynx.ir.dims import contiguous_strides
from lynx.ir.kernel import Kernel
from lynx.ir.ops.fusion import Fused
from lynx.pass_context import pass_context
from lynx.passes import Fuse, parse_pipeline
from lynx.passes.fusion import kernel_of
from lynx.records import RECORDS

BEFORE = "canonicalize,cse,dce,fold-constants,canonicalize,cse,dce,decompose{all=true},cse,dce"


def fused_graphs(model: Callable[..., torch.Tensor], *inputs: Any) -> list[Graph]:
    """Return the graphs of a model and its gradient, fused as for a target with kernels."""
    found = RECORDS.listen()
    try:
        torch.compiler.reset()
        torch.compile(model, backend="lynx")(*inputs).sum().backward()
    finally:
        RECORDS.unlisten(found)
    graphs = []
    for record in found:
        assert record.imported is not None, record.fallback
        context = pass_context(record.imported)
        context.target = dataclasses.replace(context.target, device="cpu", generates_code=True)
        graphs.append(Fuse().run(parse_pipeline(BEFORE).run(record.imported, context), context))
    return graphs


def kernels_in(graph: Graph) -> Iterator[Kernel]:
    """Yield the kernel of each fused op, for row-major inputs and results."""
    for op in graph.ops:
        if isinstance(op, Fused):
            inputs = [contiguous_strides(value.shape) for value in op.inputs]
            results = [contiguous_strides(value.shape) for value in op.results]
            yield kernel_of(op, inputs, results, {})


def check_graph(graph: Graph, interpreter: TritonInterpreter, limits: Limits = LIMITS) -> int:
    """Run each fused op by Triton and by the interpreter of kernels; return how many there are."""
    values: dict[Value, Any] = dict(zip(graph.inputs, random_inputs(graph), strict=True))
    count = 0
    for op in graph.ops:
        if isinstance(op, Fused):
            results = check_fused(op, [values[v] for v in op.inputs], interpreter, limits)
            count += 1
        else:
            results = list(run(op, values, {}, graph.resources))
        values.update(zip(op.results, results, strict=True))
    return count


def check_fused(
    op: Fused, inputs: list[torch.Tensor], interpreter: TritonInterpreter, limits: Limits
) -> list[torch.Tensor]:
    """Compare both ways of running one fused op; return its results."""
    strides = [contiguous_strides(value.shape) for value in op.results]
    kernel = kernel_of(op, [tensor.stride() for tensor in inputs], strides, {})
    made, wanted = ([_empty(value) for value in op.results] for _ in range(2))
    interpreter.run_kernel(kernel, _memory(kernel, inputs, made), limits=limits)
    run_kernel(kernel, _memory(kernel, inputs, wanted))
    for got, want in zip(made, wanted, strict=True):
        if want.numel():
            low = want.dtype in (torch.bfloat16, torch.float16)
            error = 2e-2 if low else 1e-4
            scale = float(want.double().abs().nan_to_num(0, 0, 0).max())
            torch.testing.assert_close(
                got,
                want,
                rtol=error,
                atol=error * max(scale, 1.0),
                equal_nan=True,
                msg=lambda text: f"{kernel.name}: {text}",
            )
    return wanted


def _empty(value: Value) -> torch.Tensor:
    return torch.zeros(value.shape, dtype=torch_dtype(value.tensor_type.dtype))


def _memory(
    kernel: Kernel, inputs: list[torch.Tensor], results: list[torch.Tensor]
) -> list[torch.Tensor]:
    chosen = [
        (inputs if buffer.name[0] == "x" else results)[int(buffer.name[1:])]
        for buffer in kernel.buffers
    ]
    return [
        torch.as_strided(tensor, (buffer.extent,), (1,))
        for tensor, buffer in zip(chosen, kernel.buffers, strict=True)
    ]


class Block(nn.Module):
    """A transformer block with attention written by hand, a loss, and an embedding."""

    def __init__(self, width: int = 48, heads: int = 4, vocabulary: int = 61) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).split(width, 2)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        logits = x @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=3)


class Gated(nn.Module):
    """A gated layer with root-mean-square norm and rotary positions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.gate, self.up = nn.Linear(width, 40), nn.Linear(width, 40)
        self.down = nn.Linear(40, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        half = y.shape[-1] // 2
        angle = torch.arange(y.shape[-2])[:, None] * 0.01 ** torch.linspace(0, 1, half)
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        y = y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Convolutions(nn.Module):
    """Convolutions with batch and group norms, pooling, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.groups = nn.GroupNorm(2, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = x + F.hardswish(self.groups(self.second(x)))
        return self.last(x.mean((2, 3))).log_softmax(-1)


def model_inputs(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a small model and inputs for it."""
    torch.manual_seed(0)
    if name == "block":
        tokens = torch.randint(0, 61, (2, 9))
        return Block(), (tokens, tokens.roll(1, 1))
    if name == "block_bf16":
        tokens = torch.randint(0, 61, (2, 9))
        return Block().bfloat16(), (tokens, tokens.roll(1, 1))
    if name == "gated":
        return Gated(), (torch.randn(2, 7, 32),)
    return Convolutions(), (torch.randn(2, 3, 9, 9),)


MODELS = ("block", "block_bf16", "gated", "convolutions")
assert lynx.__all__, "the package registers the back end with torch"
