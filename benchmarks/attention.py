"""Time attention as models write it, compiled, against torch's, interleaved, and print ratios.

python benchmarks/attention.py
python benchmarks/attention.py --lengths 1024 --depths 64 --types float32 --rounds 21 --inductor
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

TOKENS = 8192
"""Heads times length: so many heads that this is about the same for all lengths."""


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of all to all, written by hand."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to what came before, written by hand."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1) @ v


def ways_of(length: int, *, is_causal: bool) -> dict[str, Attention]:
    """Return what is compared: the first is compiled."""
    by_hand = causal if is_causal else plain
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    ways: dict[str, Attention] = {
        "sdpa": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        "eager": by_hand,
    }
    if is_causal:
        ways["dense mask"] = lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return ways


def step(attention: Attention, tensors: Sequence[Tensor], grad: Tensor | None) -> Any:
    """Run attention, and its gradients if there is one of its result."""
    if grad is None:
        with torch.no_grad():
            return attention(*tensors)
    return torch.autograd.grad(attention(*tensors), tensors, grad)


def compare(ways: dict[str, Callable[[], Any]], rounds: int) -> str:
    """Return the median time of the first way, and how many times longer the others take.

    Ratios are medians over rounds, in each of which all ways run once.
    """
    for run in ways.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if torch.get_default_device().type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    first, *others = ways
    parts = [f"{first} {statistics.median(seconds[first]) * 1e3:8.2f} ms"]
    for name in others:
        pairs = zip(seconds[name], seconds[first], strict=True)
        parts.append(f"{name} {statistics.median(a / b for a, b in pairs):5.2f}x")
    return "   ".join(parts)


def measure(options: Any, length: int, depth: int, dtype: torch.dtype, *, is_causal: bool) -> None:
    """Print two lines: forward, and forward with gradients."""
    heads = max(1, TOKENS // length)
    tensors = [torch.randn(1, heads, length, depth).to(dtype) for _ in range(3)]
    by_hand = causal if is_causal else plain
    for grads in (False, True):
        torch._dynamo.reset()
        given = [x.clone().requires_grad_(grads) for x in tensors]
        grad = torch.randn_like(tensors[0]) if grads else None
        ways = {"lynx": torch.compile(by_hand, backend="lynx", dynamic=False)}
        if options.inductor:
            ways["inductor"] = torch.compile(by_hand, dynamic=False)
        ways |= ways_of(length, is_causal=is_causal)
        if grads or length > options.eager:
            del ways["eager"]
        runs = {name: lambda f=way, x=given, g=grad: step(f, x, g) for name, way in ways.items()}
        label = (
            f"{str(dtype)[6:]} {heads}x{length}x{depth}{' causal' if is_causal else ''}"
            f"{' and gradients' if grads else ''}"
        )
        print(f"{label:<44} {compare(runs, options.rounds)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--depths", default="64,128")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eager", type=int, default=1024, help="the longest length for eager")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--device", default="cpu", help="where tensors are: cpu or cuda")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.device != "cpu":
        torch.set_default_device(options.device)
    for dtype in (getattr(torch, name) for name in options.types.split(",")):
        for length in map(int, options.lengths.split(",")):
            for depth in map(int, options.depths.split(",")):
                for is_causal in (False, True):
                    measure(options, length, depth, dtype, is_causal=is_causal)


if __name__ == "__main__":
    main()
