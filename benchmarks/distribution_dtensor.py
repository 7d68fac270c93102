"""What DTensor's eager propagation and Lynx communicate for the same model and the same plan.

    python -m benchmarks.distribution_dtensor                   4 processes, a table

A GPT takes one training step by each recipe: eagerly, with parameters distributed as DTensors and
operator-by-operator propagation, and through Lynx from the same placements. Collectives are
counted where they reach torch's functional collectives, and in the program over the mesh; bytes are
what each process sends in a ring.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import lynx  # noqa: F401 - registers the back end
from benchmarks.launch import is_launched, launched
from lynx.passes.distribution.report import Traffic, traffic_of
from lynx.records import RECORDS

COUNTED = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
Table = dict[str, tuple[int, float]]


class Block(torch.nn.Module):
    """A layer of a GPT with separate projections, over rows of tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
        self.norm_network = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        y = self.norm_attention(x)
        q, k, v = (one(y).view(shape).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-2, -1) * shape[-1] ** -0.5).softmax(-1)
        x = x + self.o((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_network(x))))


class Model(torch.nn.Module):
    """Layers, and the mean of squares as a loss."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.head(self.layers(x)).pow(2).mean()


def tensor_parallel(name: str, dim: int) -> Sequence[Placement]:
    """Return how a parameter lies in Megatron's way."""
    part = name.split(".")[-2]
    if part in ("q", "k", "v", "up"):
        return [Shard(0)]
    if part in ("o", "down") and dim == 2:
        return [Shard(1)]
    return [Replicate()]


def fully_sharded(name: str, dim: int) -> Sequence[Placement]:
    """Return how a parameter lies where each process keeps a piece of each."""
    del name, dim
    return [Shard(0)]


RECIPES: dict[str, tuple[Callable[[str, int], Sequence[Placement]], Sequence[Placement]]] = {
    "data parallel": (lambda name, dim: [Replicate()], [Shard(0)]),
    "fully sharded": (fully_sharded, [Shard(0)]),
    "tensor parallel": (tensor_parallel, [Replicate()]),
}


class Counting(TorchDispatchMode):
    """Counts functional collectives and the bytes that each process sends."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.found: dict[str, list[float]] = collections.defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a collective, and run it; what DTensor does is seen from inside."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if name in COUNTED and "functional" in str(func):
            given = args[0].numel() * args[0].element_size()
            local = given * self.count if name == "all_gather_into_tensor" else given
            sent = local * (self.count - 1) / self.count
            self.found[COUNTED[name]].append(2 * sent if name == "all_reduce" else sent)
        return result


def distributed(model: Model, mesh: DeviceMesh, recipe: str) -> Model:
    """Distribute the parameters of a model by a recipe."""
    place, _ = RECIPES[recipe]
    for name, parameter in list(model.named_parameters()):
        *path, last = name.split(".")
        owner: Any = model.get_submodule(".".join(path))
        spread = distribute_tensor(parameter.data, mesh, place(name, parameter.dim()))
        setattr(owner, last, torch.nn.Parameter(spread))
    return model


def step(run: Callable[..., torch.Tensor], mesh: DeviceMesh, recipe: str, shape: Any) -> None:
    """Take a step: gradients come back as the parameters lie."""
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(shape), mesh, RECIPES[recipe][1])
    loss = run(x)
    loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
    loss.backward()


def counted(found: dict[str, list[float]]) -> Table:
    """Return the number and the bytes of each kind."""
    return {kind: (len(sent), sum(sent)) for kind, sent in sorted(found.items())}


def added(traffic: Sequence[Traffic]) -> Table:
    """Return the number and the bytes of each kind, over all programs."""
    table: Table = {}
    for one in traffic:
        count, sent = table.get(one.kind, (0, 0.0))
        table[one.kind] = (count + one.count, sent + one.sent)
    return dict(sorted(table.items()))


def measure(options: argparse.Namespace) -> None:
    """Run as one of several processes; the first prints JSON."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("x",))
    shape = (options.batch, options.length, options.width)
    results: dict[str, dict[str, Any]] = {}
    for recipe in RECIPES:
        model = Model(options.layers, options.width, options.heads)
        distributed(model, mesh, recipe)
        counting = Counting(dist.get_world_size())
        try:
            with counting:
                step(model, mesh, recipe, shape)
            eager: Any = counted(counting.found)
        except (RuntimeError, NotImplementedError) as error:
            eager = f"refused: {str(error).splitlines()[0][:80]}"
        model.zero_grad()
        torch.compiler.reset()
        step(torch.compile(model, backend="lynx"), mesh, recipe, shape)
        programs = [record.distributed for record in RECORDS.graphs]
        traffic = [one for graph in programs if graph is not None for one in traffic_of(graph)]
        results[recipe] = {"dtensor": eager, "lynx": added(traffic)}
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return a table in Markdown, a row for each recipe and kind of collective."""
    lines = [
        "| recipe | collective | DTensor | sent | Lynx | sent |",
        "| :-- | :-- | --: | --: | --: | --: |",
    ]
    for recipe, both in results.items():
        eager, ours = both["dtensor"], both["lynx"]
        if isinstance(eager, str):
            lines.append(f"| {recipe} | | {eager} | | | |")
            eager = {}
        for kind in sorted({*eager, *ours}):
            cells = [eager.get(kind, (0, 0.0)), ours.get(kind, (0, 0.0))]
            texts = [f"{count} | {sent / 1000:.0f} kB" for count, sent in cells]
            lines.append(f"| {recipe} | {kind} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Start the processes, and print what they found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--out", default="", help="where the processes leave what they found")
    options = parser.parse_args(arguments)
    if is_launched():
        measure(options)
        return 0
    code, results = launched("benchmarks.distribution_dtensor", arguments, options.processes)
    if code == 0:
        print(table(results))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
