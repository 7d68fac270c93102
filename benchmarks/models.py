"""Time training steps of small models with eager and compilers, interleaved, and print a table.

python benchmarks/models.py
python benchmarks/models.py --backends lynx,inductor --models gpt,mlp --steps 50
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, tuple[Tensor, ...]]


def mlp() -> Case:
    """Build three wide layers."""
    sizes = [256, 1024, 1024, 256]
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.GELU()]
    return nn.Sequential(*layers), (torch.randn(128, 256),)


def encoder() -> Case:
    """Build a transformer encoder of torch's own."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(8, 64, 128),)


def convolutions() -> Case:
    """Build convolutions with batch norm."""
    widths = [3, 16, 32, 32]
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers), (torch.randn(8, 3, 32, 32),)


class Elementwise(nn.Module):
    """A chain that does little with much memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1024))

    def forward(self, x: Tensor) -> Tensor:
        """Compute a gated polynomial."""
        y = x * self.scale
        return torch.sigmoid(y) * torch.tanh(y * y + 1) + (y - 2).exp().clamp(max=4)


def elementwise() -> Case:
    """Build a memory-bound chain."""
    return Elementwise(), (torch.randn(512, 1024),)


MODELS: dict[str, Callable[[], Case]] = {
    "convolutions": convolutions,
    "elementwise": elementwise,
    "encoder": encoder,
    "mlp": mlp,
}


def step(run: Callable[..., Tensor], model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Run forward and backward; return the seconds it took."""
    start = time.perf_counter()
    model.zero_grad()
    run(*inputs).square().mean().backward()
    return time.perf_counter() - start


def race(name: str, backends: Sequence[str], steps: int) -> dict[str, list[float]]:
    """Return the times of each contestant's steps, the first of them with compilation."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    torch._dynamo.reset()
    contestants: dict[str, tuple[Any, nn.Module]] = {"eager": (model, model)}
    for backend in backends:
        own = copy.deepcopy(model)
        contestants[backend] = (torch.compile(own, backend=backend), own)
    seconds: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    for index in range(steps):
        order = list(contestants) if index % 2 else list(contestants)[::-1]
        for contestant in order:
            run, own = contestants[contestant]
            seconds[contestant].append(step(run, own, inputs))
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each model and contestant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default="lynx")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args(arguments)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.steps} steps")
    print(f"{'model':<14}{'run by':<12}{'first step':>12}{'median':>12}{'speed':>8}")
    for name in options.models.split(","):
        seconds = race(name, options.backends.split(","), options.steps)
        for contestant, times in seconds.items():
            pairs = zip(seconds["eager"][2:], times[2:], strict=True)
            ratio = statistics.median(eager / ours for eager, ours in pairs)
            median = statistics.median(times[2:]) * 1e3
            print(f"{name:<14}{contestant:<12}{times[0]:>10.2f} s{median:>9.1f} ms{ratio:>7.2f}x")


if __name__ == "__main__":
    main()
