"""Train the demo's GPT, or a small mixture of experts, on several processes by a plan.

    python examples/train_distributed.py --recipe fsdp
    python examples/train_distributed.py --recipe tp+sp --processes 4 --steps 20
    torchrun --nproc-per-node 4 examples/train_distributed.py --recipe 2d

Recipes are plans: which axis of the mesh cuts which dimension of which parameter. The same model
runs whole on one process beside them, from the same weights on the same batches, and the losses are
compared. What each step communicates is printed, and by `--show` the plan.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional
from train_gpt import GPT, batches, read_text

import lynx

VOCABULARY = 256

SHARDED = {"*weight": "dp, ...", "*bias": "dp"}
"""Each process keeps a piece of each parameter, and gathers it where it is used (ZeRO-3, FSDP)."""

TENSOR = {
    # Queries, keys and values are three blocks of one projection: each of them is cut by heads.
    "*.project_in.weight": "tp of 3, _",
    "*.project_in.bias": "tp of 3",
    "*.project_out.weight": "_, tp",
    "*.network.0.weight": "tp, _",
    "*.network.0.bias": "tp",
    "*.network.2.weight": "_, tp",
}
"""Products run on parts of heads and of hidden units (Megatron-LM, Shoeybi et al. 2019)."""

EXPERTS = {"*.experts_in": "ep, _, _", "*.experts_out": "ep, _, _"}
"""Each process has some of the experts, and computes their share of the output."""


@dataclass(frozen=True)
class Recipe:
    """A plan, the axes of its mesh with their sizes for so many processes, and the model."""

    axes: Callable[[int], dict[str, int]]
    plan: dict[str, str]
    inputs: str
    sequence: str = ""
    is_mixture: bool = False


RECIPES = {
    "ddp": Recipe(lambda count: {"dp": count}, {}, "dp, _"),
    "fsdp": Recipe(lambda count: {"dp": count}, SHARDED, "dp, _"),
    "tp": Recipe(lambda count: {"tp": count}, TENSOR, "_, _"),
    "tp+sp": Recipe(lambda count: {"tp": count}, TENSOR, "_, _", sequence="_, tp, _"),
    "2d": Recipe(lambda count: {"dp": max(count // 2, 1), "tp": min(count, 2)}, TENSOR, "dp, _"),
    "moe": Recipe(lambda count: {"ep": count}, EXPERTS, "_, _", is_mixture=True),
}


class Mixture(nn.Module):
    """Experts of two layers each, of which a token takes the best two, weighed by a gate."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts_in = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.experts_out = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.gate(tokens)
        best = scores.topk(2, dim=-1)
        chosen = torch.zeros_like(scores).scatter(1, best.indices, best.values.softmax(-1))
        hidden = functional.silu(torch.einsum("td,edf->etf", tokens, self.experts_in))
        outputs = torch.einsum("etf,efd->etd", hidden, self.experts_out)
        return torch.einsum("etd,te->td", outputs, chosen).view_as(x)


def make_model(recipe: Recipe, options: argparse.Namespace) -> GPT:
    """Build the model; every call gives the same weights."""
    torch.manual_seed(options.seed)
    model = GPT(options.layers, options.width, options.heads, options.context, dropout=0.0)
    if recipe.is_mixture:
        for block in model.blocks:
            block.network = Mixture(options.width, options.experts)
    return model.train()


def cut_sequences(model: GPT, sharding: str) -> None:
    """Let what is between attention and network lie in pieces of the sequence."""

    def constrain(_: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        return lynx.constrain(given[0], sharding)

    for block in model.blocks:
        block.norm_attention.register_forward_pre_hook(constrain)
        block.norm_network.register_forward_pre_hook(constrain)
    model.norm.register_forward_pre_hook(constrain)


def whole(value: Tensor) -> Tensor:
    """Return a tensor as a whole."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def train(
    model: nn.Module, work: list[tuple[Tensor, Tensor]], rate: float
) -> tuple[list[float], list[float]]:
    """Return the losses of all steps, and how long each took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=False)
    losses, seconds = [], []
    for tokens, targets in work:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(float(whole(loss.detach())))
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def run(options: argparse.Namespace) -> None:
    """Train on this process, as one of several."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    recipe = RECIPES[options.recipe]
    axes = recipe.axes(dist.get_world_size())
    mesh: DeviceMesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    work = batches(read_text(), options)
    model = make_model(recipe, options)
    alone = copy.deepcopy(model)
    if recipe.sequence:
        cut_sequences(model, recipe.sequence)
    names = {"tokens": recipe.inputs, "targets": recipe.inputs}
    model = lynx.parallelize(model, mesh, recipe.plan, inputs=names)
    losses, seconds = train(model, work, options.rate)
    if dist.get_rank() == 0:
        expected, _ = train(alone, work, options.rate)
        report(options, axes, losses, expected, seconds)
    dist.barrier()
    dist.destroy_process_group()


def report(
    options: argparse.Namespace,
    axes: dict[str, int],
    losses: list[float],
    expected: list[float],
    seconds: list[float],
) -> None:
    """Print what was trained, and how far the losses are from those of one process."""
    mesh = ", ".join(f"{name} = {size}" for name, size in axes.items())
    print(f"{options.recipe} on {mesh}: {len(losses)} steps")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, on one process {expected[-1]:.4f}")
    off = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    print(f"losses are off from those of one process by at most {off:.1e}")
    print(f"first step {seconds[0]:.1f} s, then {statistics.median(seconds[1:]) * 1e3:.0f} ms")
    if off > options.tolerance:
        raise SystemExit("the losses differ")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", choices=RECIPES, default="fsdp")
    parser.add_argument("--processes", type=int, default=4, help="without torchrun")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=6, help="need not be even")
    parser.add_argument("--experts", type=int, default=6)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--show", action="store_true", help="print the plan and stop")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Start the processes, unless torchrun did."""
    options = parse(arguments)
    if options.show:
        for pattern, sharding in RECIPES[options.recipe].plan.items():
            print(f"{pattern} = {sharding}")
        return 0
    if "RANK" in os.environ:
        run(options)
        return 0
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [sys.executable, *launch, str(options.processes), __file__, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
