"""Time attention as models write it, compiled, against torch's, interleaved, and print ratios.

python -m benchmarks.attention
python -m benchmarks.attention --lengths 1024,8x300 --depths 64 --types float32 --inductor
python -m benchmarks.attention --results benchmarks/results/x86-64-2-threads

Results are added to those of earlier runs in the folder. `--rounds 0` only compiles.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

TOKENS = 8192
"""Heads times length: so many heads that this is about the same for all lengths."""

LEGEND = """\
One sequence, as many heads as make 8192 queries in all, but at most 64; causal and plain attention
are written out by hand, with a softmax between two products. Columns say how many times as long as
Lynx the others take: Inductor and eager run the same source, `sdpa` is torch's function with
`is_causal`, `dense mask` the same function given the mask as a tensor. Medians of rounds in which
each runs once."""


@dataclass(frozen=True)
class Case:
    """What is timed: sizes, element type, mask, and whether with gradients."""

    queries: int
    keys: int
    depth: int
    dtype: str
    is_causal: bool
    grads: bool

    @property
    def heads(self) -> int:
        """Heads of queries, and of keys."""
        return max(1, min(TOKENS // self.queries, 64))

    @property
    def label(self) -> str:
        """The case in words."""
        lengths = f"{self.queries}" if self.queries == self.keys else f"{self.queries}x{self.keys}"
        causal = " causal" if self.is_causal else ""
        grads = " and gradients" if self.grads else ""
        return f"{self.dtype} {self.heads}x{lengths}x{self.depth}{causal}{grads}"


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of all to all, written by hand."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to what came before, written by hand."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1) @ v


def torch_attention(*, is_causal: bool) -> Attention:
    """Return torch's own function."""
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def ways_of(case: Case, *, inductor: bool, longest_eager: int) -> dict[str, Attention]:
    """Return what is compared, Lynx first."""
    by_hand = causal if case.is_causal else plain
    ways: dict[str, Attention] = {"lynx": torch.compile(by_hand, backend="lynx", dynamic=False)}
    ways["sdpa"] = torch_attention(is_causal=case.is_causal)
    if case.is_causal:
        mask = torch.ones(case.queries, case.keys, dtype=torch.bool).tril()
        ways["dense mask"] = lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if case.queries <= longest_eager:
        ways["eager"] = by_hand
    if inductor:
        ways["inductor"] = torch.compile(by_hand, dynamic=False)
    return ways


def step(attention: Attention, tensors: Sequence[Tensor], grad: Tensor | None) -> Any:
    """Run attention, and its gradients if there is one of its result."""
    if grad is None:
        with torch.no_grad():
            return attention(*tensors)
    return torch.autograd.grad(attention(*tensors), tensors, grad)


def race(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way, which run in turn."""
    for run in ways.values():
        run()
        run()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if torch.get_default_device().type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median milliseconds of the first way, and how many times longer others take.

    Ratios are medians over rounds, in each of which all ways run once.
    """
    first, *others = seconds
    found = {f"{first} ms": statistics.median(seconds[first]) * 1e3}
    for name in others:
        pairs = zip(seconds[name], seconds[first], strict=True)
        found[name] = statistics.median(a / b for a, b in pairs)
    return found


def measure(case: Case, options: Any) -> dict[str, float]:
    """Return the summary of a case; of no rounds, nothing."""
    torch._dynamo.reset()
    dtype = getattr(torch, case.dtype)
    lengths = (case.queries, case.keys, case.keys)
    tensors = [
        torch.randn(1, case.heads, n, case.depth).to(dtype).requires_grad_(case.grads)
        for n in lengths
    ]
    grad = torch.randn_like(tensors[0]) if case.grads else None
    ways = ways_of(case, inductor=options.inductor, longest_eager=options.eager)
    runs = {name: lambda f=way: step(f, tensors, grad) for name, way in ways.items()}
    seconds = race(runs, options.rounds)
    return summary(seconds) if options.rounds else {}


def cases_of(options: Any) -> Iterator[Case]:
    """Yield what the options ask for."""
    for dtype in options.types.split(","):
        for length in options.lengths.split(","):
            queries, _, keys = length.partition("x")
            for depth in map(int, options.depths.split(",")):
                for is_causal in (False, True):
                    for grads in (False, True):
                        sizes = (int(queries), int(keys or queries), depth)
                        yield Case(*sizes, dtype, is_causal, grads)


COLUMNS = ("lynx ms", "sdpa", "dense mask", "eager", "inductor")


def table(results: Mapping[str, Mapping[str, float]], machine: str) -> str:
    """Return the results as a page."""
    lines = ["# Attention", "", machine, "", LEGEND, ""]
    width = max(map(len, results), default=4)
    heads = [f"{name:>10}" for name in COLUMNS]
    lines.append(f"| {'case':<{width}} | {' | '.join(heads)} |")
    lines.append(f"| :{'-' * (width - 1)} | {' | '.join('-' * 9 + ':' for _ in COLUMNS)} |")
    for label, row in results.items():
        cells = [f"{row[name]:>10.2f}" if name in row else " " * 10 for name in COLUMNS]
        lines.append(f"| {label:<{width}} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(folder: Path, new: Mapping[str, Mapping[str, float]], machine: str) -> None:
    """Add results to those in a folder; write the numbers, and the page of all of them."""
    path = folder / "attention.json"
    results: dict[str, dict[str, float]] = {}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    for label, row in new.items():
        results[label] = {**results.get(label, {}), **row}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "attention.md").write_text(table(results, machine), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write it if there is a folder for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", default="1024,4096", help="queries, or QUERIESxKEYS")
    parser.add_argument("--depths", default="64,128")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eager", type=int, default=1024, help="the longest length for eager")
    parser.add_argument("--inductor", action="store_true", help="compare with Inductor, too")
    parser.add_argument("--device", default="cpu", help="where tensors are: cpu or cuda")
    parser.add_argument("--results", type=Path, help="the folder to add results to")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.device != "cpu":
        torch.set_default_device(options.device)
    for case in cases_of(options):
        row = measure(case, options)
        parts = [f"{name} {value:8.2f}" for name, value in row.items()]
        print(f"{case.label:<48} {'   '.join(parts)}", flush=True)
        if options.results and row:
            machine = f"{options.threads} threads, torch {torch.__version__}"
            write(options.results, {case.label: row}, machine)


if __name__ == "__main__":
    main()
