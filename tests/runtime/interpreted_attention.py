"""Attention without a compiler: its score kernels are interpreted, all rows of them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lynx.backends.reference import run_kernel
from lynx.ir import DType
from lynx.ir.dims import Dim
from lynx.ir.kernel import Kernel
from lynx.ir.native import AttentionBackwardCall, AttentionCall, Pointer, Strided
from lynx.passes.attention.differentiate import GRAD, GRAD_DOT
from lynx.passes.attention.score import DOT, SCORE
from lynx.runtime.dtypes import torch_dtype

Flat = Callable[[Pointer, int, DType], torch.Tensor]
"""Returns memory at an address, so many numbers of a type."""


class Attending:
    """One attention: its operands, the products, and the shares of keys."""

    def __init__(
        self,
        call: AttentionCall,
        flat: Flat,
        evaluate: Callable[[Dim], int],
        symbols: Mapping[str, int],
    ) -> None:
        self.call, self.flat, self.evaluate, self.symbols = call, flat, evaluate, symbols
        b, h, g, m, n, d, e = map(evaluate, dataclasses.astuple(call.sizes))
        self.group, self.rows = h // g if g else 1, (b, h, m)
        self.dtype = torch_dtype(call.score.buffers[-1].dtype)
        self.q = self.tensor(call.q, (b, h, m, d)).to(self.dtype)
        self.k = self._for_heads(self.tensor(call.k, (b, g, n, d)))
        self.v = self._for_heads(self.tensor(call.v, (b, g, n, e)))
        self.out = self.tensor(call.out, (b, h, m, e))
        self.lse = self.tensor(call.lse, (b, h, m))
        self.dot = (self.q @ self.k.mT).contiguous()
        scores = torch.empty_like(self.dot)
        self.interpret(call.score, {DOT: self.dot, SCORE: scores})
        self.logarithms, self.weights, self.share = self._softmax(scores)

    def tensor(self, place: Strided, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor in memory, in its own shape if it has one."""
        shape = tuple(map(self.evaluate, place.shape)) or shape
        if 0 in shape:
            return torch.empty(shape, dtype=torch_dtype(place.dtype))
        strides = tuple(map(self.evaluate, place.strides))
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        return self.flat(place.pointer, reach, place.dtype).as_strided(shape, strides)

    def _for_heads(self, shared: torch.Tensor) -> torch.Tensor:
        return shared.to(self.dtype).repeat_interleave(self.group, 1)

    def for_shared(self, of_heads: torch.Tensor) -> torch.Tensor:
        """Return sums over the heads of queries that share one of keys."""
        return of_heads.unflatten(1, (-1, self.group)).sum(2)

    def interpret(self, kernel: Kernel, given: Mapping[str, torch.Tensor]) -> None:
        """Run a kernel on these tensors, which are dense, and the operands."""
        names = [b.name for b in self.call.score.buffers if b.name not in (DOT, SCORE)]
        pointers = dict(zip(names, self.call.operands, strict=True))
        buffers = [
            given[buffer.name].view(-1)
            if buffer.name in given
            else self.flat(pointers[buffer.name], self.evaluate(buffer.extent), buffer.dtype)
            for buffer in kernel.buffers
        ]
        run_kernel(kernel, buffers, self.symbols)

    def _softmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        keys = scores.shape[3]
        if self.call.sink is not None:
            sink = self.tensor(self.call.sink, ()).to(self.dtype).expand(self.rows)
            scores = torch.cat([scores, sink[..., None]], 3)
        weights = torch.softmax(scores, 3)
        logarithms = torch.logsumexp(scores, 3)
        if self.call.zero_empty:
            weights = weights.masked_fill((logarithms == -torch.inf)[..., None], 0)
        return logarithms, weights[..., :keys], weights[..., keys:].sum(3)

    def kept(self, weights: torch.Tensor) -> torch.Tensor:
        """Return weights, or their gradients, after dropout."""
        if self.call.keep is None:
            return weights
        return weights * self.tensor(self.call.keep, weights.shape) * self.call.keep_scale

    def forward(self) -> None:
        """Write the results."""
        self.out.copy_(self.kept(self.weights) @ self.v)
        self.lse.copy_(self.logarithms)

    def backward(self, call: AttentionBackwardCall) -> None:
        """Write the gradients that are wanted."""
        incoming = self.tensor(call.grad_out, self.out.shape).to(self.dtype)
        of_weights = self.kept(incoming @ self.v.mT)
        of_rows = -(of_weights * self.weights).sum(3)
        if call.grad_lse is not None:
            of_rows = of_rows + self.tensor(call.grad_lse, self.rows).to(self.dtype)
        of_scores = (of_weights + of_rows[..., None]) * self.weights
        of_dot = torch.empty_like(self.dot)
        sums = {
            b.name: torch.zeros(self.evaluate(b.extent), dtype=self.dtype)
            for b in call.derivative.buffers
            if b.is_written and b.name != GRAD_DOT
        }
        named = {DOT: self.dot, GRAD: of_scores.contiguous(), GRAD_DOT: of_dot, **sums}
        self.interpret(call.derivative, named)
        self._write(call.q, of_dot @ self.k)
        self._write(call.k, self.for_shared(of_dot.mT @ self.q))
        self._write(call.v, self.for_shared(self.kept(self.weights).mT @ incoming))
        if call.sink is not None:
            target = self.tensor(call.sink, ())
            target.copy_((self.share * of_rows).sum_to_size(target.shape))
        for place, total in zip(call.operands, sums.values(), strict=True):
            target = self.tensor(place, ())
            target.copy_(total.view(target.shape))

    def _write(self, place: Strided | None, gradient: torch.Tensor) -> None:
        if place is not None:
            self.tensor(place, gradient.shape).copy_(gradient)


def attend(call: AttentionCall | AttentionBackwardCall, *memory: Any) -> None:
    """Run a call; `memory` is what `Attending` takes besides."""
    if isinstance(call, AttentionCall):
        Attending(call, *memory).forward()
    else:
        Attending(call.forward, *memory).backward(call)
