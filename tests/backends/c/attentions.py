"""Run attentions through the C back end, and say what they should give."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from lynx.backends.c import compile_segments
from lynx.ir import DType
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    AttentionSizes,
    NativeCall,
    NativeFunction,
    Pointer,
    Segment,
    Strided,
)
from lynx.ir.ops.fusion import Region
from lynx.ir.parser import parse_graph
from lynx.passes.attention.differentiate import derivative_kernel, plain_derivative
from lynx.passes.attention.score import plain_score, score_kernel

DTYPES = {
    torch.float32: DType.F32, torch.float64: DType.F64, torch.bfloat16: DType.BF16,
    torch.float16: DType.F16, torch.bool: DType.BOOL, torch.int64: DType.I64,
    torch.int32: DType.I32,
}  # fmt: skip

Score = Callable[..., torch.Tensor]


@dataclass
class Example:
    """An attention: sizes, the text of its score function, and the same in torch."""

    sizes: tuple[int, int, int, int, int, int, int] = (2, 4, 2, 70, 90, 16, 24)
    text: str = ""
    score: Score = field(default=lambda dot: dot)
    operands: Sequence[torch.Tensor] = ()
    dtype: torch.dtype = torch.float32
    sink: torch.Tensor | None = None
    keep: torch.Tensor | None = None
    keep_scale: float = 1.0
    zero_empty: bool = False
    scale: float = 1.0
    layout: tuple[int, int, int, int] = (0, 2, 1, 3)

    @property
    def real(self) -> torch.dtype:
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, h, g, q, k, d, e = self.sizes
        shapes = ((b, h, q, d), (b, g, k, d), (b, g, k, e))
        generator = torch.Generator().manual_seed(0)
        return tuple(  # type: ignore[return-value]
            laid(torch.randn(shape, generator=generator) * self.scale, self.layout).to(self.dtype)
            for shape in shapes
        )

    def region(self) -> Region:
        b, h, _, q, k, _, _ = self.sizes
        real = DTYPES[self.real].value
        head = ", ".join(
            [f"%dot: {real}[{b}, {h}, {q}, {k}]", *(
                f"%x{n}: {DTYPES[x.dtype].value}[{', '.join(map(str, x.shape))}]"
                for n, x in enumerate(self.operands)
            )]
        )  # fmt: skip
        body = self.text.replace("SHAPE", f"[{b}, {h}, {q}, {k}]").replace("REAL", real)
        body = body.replace("QUERIES", str(q)).replace("KEYS", str(k))
        body = body or "return %dot"
        graph = parse_graph(f"graph @score({head}) {{\n{body}\n}}")
        return Region(
            tuple(graph.inputs), tuple(graph.ops), tuple(o for o in graph.outputs if o is not None)
        )

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        operands: Sequence[torch.Tensor] | None = None,
        sink: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and lse, computed in f64."""
        wide = torch.float64
        groups = self.sizes[1] // self.sizes[2]
        k, v = (x.repeat_interleave(groups, 1).to(wide) for x in (k, v))
        dot = (q.to(wide) @ k.transpose(-1, -2)).to(self.real)
        operands = self.operands if operands is None else operands
        scores = self.score(dot, *operands).to(wide)
        sink = self.sink if sink is None else sink
        if sink is not None:
            more = sink.to(wide).expand(scores.shape[:-1])[..., None]
            scores = torch.cat([scores, more], -1)
        is_empty = (scores == -torch.inf).all(-1, keepdim=True)
        if self.zero_empty:
            scores = torch.where(is_empty, 0.0, scores)
        weights = torch.softmax(scores, -1)
        # The gradient of torch.logsumexp is of no use where adding the logarithm changes nothing.
        most = scores.amax(-1, keepdim=True).detach() if scores.shape[-1] else torch.zeros(())
        most = torch.where(most == -torch.inf, 0.0, most)
        lse = ((scores - most).exp().sum(-1, keepdim=True).log() + most)[..., 0]
        if sink is not None:
            weights = weights[..., :-1]
        if self.zero_empty:
            weights = torch.where(is_empty, 0.0, weights)
            lse = torch.where(is_empty[..., 0], -torch.inf, lse)
        if self.keep is not None:
            weights = weights * self.keep * self.keep_scale
        return weights @ v, lse


def laid(x: torch.Tensor, layout: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor with its dimensions in memory in another order."""
    order = [layout.index(n) for n in range(len(layout))]
    return x.permute(layout).contiguous().permute(order)


@dataclass
class Memory:
    """Hands out slots for tensors."""

    tensors: list[torch.Tensor] = field(default_factory=list)

    def pointer(self, x: torch.Tensor) -> Pointer:
        self.tensors.append(x)
        return Pointer(len(self.tensors) - 1)

    def strided(self, x: torch.Tensor) -> Strided:
        return Strided(self.pointer(x), DTYPES[x.dtype], x.stride())

    def run(self, call: NativeCall) -> NativeFunction:
        segment = Segment("attention", (call,), len(self.tensors), ())
        (function,) = compile_segments((segment,))
        self.again(function)
        return function

    def again(self, function: NativeFunction, symbols: Sequence[int] = ()) -> None:
        numbers = (*(x.data_ptr() for x in self.tensors), *symbols)
        packed = struct.pack(f"{len(numbers)}q", *numbers)
        code = function.run(packed)
        assert code == 0, function.messages[code - 1]


def forward_call(
    example: Example, memory: Memory, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor,
) -> AttentionCall:  # fmt: skip
    """Return the call of an example on these tensors."""
    b, h, _, m, n, _, _ = example.sizes
    kernel = (
        score_kernel(example.region(), [x.stride() for x in example.operands])
        if example.text
        else plain_score(DTYPES[example.real], (b, h, m, n))
    )
    read = {buffer.name for buffer in kernel.buffers}
    operands = [x for at, x in enumerate(example.operands) if f"x{at}" in read]
    sink = example.sink.expand(b, h, m) if example.sink is not None else None
    keep = example.keep.expand(b, h, m, n) if example.keep is not None else None
    return AttentionCall(
        AttentionSizes(*example.sizes),
        *(memory.strided(x) for x in (q, k, v, out, lse)),
        kernel,
        tuple(memory.pointer(x) for x in operands),
        memory.strided(sink) if sink is not None else None,
        memory.strided(keep) if keep is not None else None,
        example.keep_scale,
        example.zero_empty,
    )


def results(example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """Return places for output and lse, filled with what must be written over."""
    b, h, _, m, _, _, e = example.sizes
    out = torch.full((b, m, h, e), 77.0, dtype=example.dtype).transpose(1, 2)
    return out, torch.full((b, h, m), 77.0, dtype=example.real)


@dataclass
class Gradients:
    """Gradients of an example: of q, k, v, sink and floating operands, None where not wanted."""

    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    operands: dict[int, torch.Tensor] = field(default_factory=dict)

    def all(self) -> dict[str, torch.Tensor]:
        named = {"q": self.q, "k": self.k, "v": self.v, "sink": self.sink}
        named |= {f"x{at}": x for at, x in self.operands.items()}
        return {name: x for name, x in named.items() if x is not None}


def gradients_of(example: Example, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Gradients:
    """Return places for all gradients, filled with what must be written over."""

    def place(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 77.0)

    return Gradients(
        place(q),
        place(k),
        place(v),
        None if example.sink is None else place(example.sink),
        {at: place(x) for at, x in enumerate(example.operands) if x.is_floating_point()},
    )


def backward_call(
    example: Example, memory: Memory, forward: AttentionCall, grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None, found: Gradients,
) -> AttentionBackwardCall:  # fmt: skip
    """Return the call that computes gradients after a forward call."""

    def strided(x: torch.Tensor | None) -> Strided | None:
        return None if x is None else memory.strided(x)

    def shaped(x: torch.Tensor) -> Strided:
        return Strided(memory.pointer(x), DTYPES[x.dtype], x.stride(), tuple(x.shape))

    wanted = sorted(found.operands)
    derivative = (
        derivative_kernel(example.region(), [x.stride() for x in example.operands], wanted)
        if example.text
        else plain_derivative(forward.score)
    )
    sink = found.sink
    if sink is not None:
        sink = sink[(None,) * (3 - sink.dim())]
    return AttentionBackwardCall(
        forward,
        memory.strided(grad_out),
        derivative,
        strided(grad_lse),
        strided(found.q),
        strided(found.k),
        strided(found.v),
        None if sink is None else shaped(sink),
        tuple(shaped(found.operands[at]) for at in wanted),
    )


def reference_gradients(
    example: Example, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Return all gradients by autograd, in f64 but for the scores."""
    leaves = {
        name: x.detach().double().requires_grad_() for name, x in zip("qkv", (q, k, v), strict=True)
    }
    operands = [
        x.detach().to(example.real).requires_grad_() if x.is_floating_point() else x
        for x in example.operands
    ]
    leaves |= {f"x{at}": x for at, x in enumerate(operands) if x.requires_grad}
    sink = None
    if example.sink is not None:
        sink = leaves["sink"] = example.sink.detach().double().requires_grad_()
    out, lse = example.reference(leaves["q"], leaves["k"], leaves["v"], operands, sink)
    total = (out * grad_out.double()).sum()
    if grad_lse is not None:
        total = total + (lse * grad_lse.double()).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(leaves.items(), found, strict=True)
    }
