"""What runs on each process in the tests of the doors."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import lynx
from lynx.distribution.agreement import Agreement
from lynx.distribution.failures import CommunicationError
from lynx.distribution.gathering import piece
from lynx.distribution.gathering import whole as gathered_whole
from lynx.distribution.groups import Groups
from lynx.distribution.meshes import (
    mesh_of,
    piece_sizes,
    placements_of,
    sharding_of_placements,
)
from lynx.distribution.step import groups_of
from lynx.ir.sharding import Split, parse_sharding
from lynx.records import RECORDS
from lynx.settings import read_settings

STRICT = {"strict": True}


class MLP(torch.nn.Module):
    """Layers whose width, 13, no mesh divides."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 13)
        self.norm = torch.nn.BatchNorm1d(13)
        self.down = torch.nn.Linear(13, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(F.gelu(self.up(x))))


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.after = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(torch.nn.Module):
    """One layer of three heads, a vocabulary of 29, and tied embeddings: nothing is even."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(29, 12)
        self.blocks = torch.nn.ModuleList(Block(12, 3) for _ in range(1))
        self.head = torch.nn.Linear(12, 29, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


TENSOR = {
    "*.qkv.weight": "tp, _", "*.qkv.bias": "tp", "*.out.weight": "_, tp",
    "*.up.weight": "tp, _", "*.up.bias": "tp", "*.down.weight": "_, tp",
    "embedding.weight": "tp, _", "head.weight": "tp, _",
}  # fmt: skip
PLANS: dict[str, tuple[tuple[tuple[str, int], ...], dict[str, str]]] = {
    "ddp": ((("dp", 2),), {"inputs.*": "dp, _"}),
    "fsdp": ((("dp", 2),), {"*weight": "dp, ...", "*bias": "dp", "inputs.*": "dp, _"}),
    "tp": ((("tp", 2),), TENSOR),
    "dp+tp": ((("dp", 2), ("tp", 2)), TENSOR | {"inputs.*": "dp, _"}),
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def close(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(
        whole(a.detach()), b.detach(), rtol=2e-4, atol=2e-5, msg=lambda text: f"{what}: {text}"
    )


def mesh(*axes: tuple[str, int]) -> DeviceMesh:
    names, sizes = zip(*axes, strict=True)
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def fallbacks() -> list[str]:
    said = [str(remark.message) for graph in RECORDS.graphs for remark in graph.remarks]
    return [text for text in said if "all is gathered" in text]


def train_planned(name: str, how: str, steps: int = 3) -> list[str]:
    """Train a GPT by a plan next to one process: losses, gradients and parameters are equal."""
    axes, plan = PLANS[name]
    torch.manual_seed(3)
    reference = GPT().double()  # gradients that are zero but for rounding stay so in Adam
    model = lynx.parallelize(
        copy.deepcopy(reference), mesh(*axes), plan, options=STRICT | {"distribution": how}
    )
    assert model.head.weight is model.embedding.weight
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-3) for one in (model, reference)]
    for step in range(steps):
        tokens = torch.randint(29, (5, 7), generator=torch.Generator().manual_seed(step))
        losses = [one(tokens, tokens.roll(-1, 1)) for one in (model, reference)]
        close(*losses, f"loss {step}")
        for loss in losses:
            loss.backward()
        for (key, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert isinstance(a.grad, DTensor)
            assert a.grad.placements == a.placements
            assert a.grad.stride() == a.stride()
            close(a.grad, b.grad, f"gradient {step} of {key}")
        norms = [
            torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0) for one in (model, reference)
        ]
        close(*norms, f"norm {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (key, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
        close(a, b, key)
    return fallbacks()


def train_distributed(how: str) -> list[str]:
    """Train with a module whose parameters, buffers and inputs the user distributed."""
    on = mesh(("tp", 2))
    torch.manual_seed(0)
    reference = MLP()
    reference.up = torch.nn.Linear(8, 12)
    reference.norm, reference.down = torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 8)
    model = copy.deepcopy(reference)
    for module in model.children():
        for key, one in list(module.named_parameters(recurse=False)):
            setattr(module, key, torch.nn.Parameter(distribute_tensor(one.data, on, [Shard(0)])))
        for key, one in list(module.named_buffers(recurse=False)):
            setattr(module, key, distribute_tensor(one, on, [Replicate()]))
    compiled = torch.compile(model, backend="lynx", options=STRICT | {"distribution": how})
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-3) for one in (model, reference)]
    for step in range(3):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(step))
        given = distribute_tensor(x, on, [Replicate()]).requires_grad_()
        x.requires_grad_()
        y, expected = compiled(given), reference(x)
        assert isinstance(y, DTensor)
        close(y, expected, f"output {step}")
        y.square().mean().backward()
        expected.square().mean().backward()
        assert given.grad is not None
        close(given.grad, x.grad, "gradient of the input")
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            assert a.grad.placements == a.placements
            close(a.grad, b.grad, f"gradient {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (key, a), b in zip(
        model.state_dict().items(), reference.state_dict().values(), strict=True
    ):
        close(a, b, key)
    return fallbacks()


def views_and_inputs_as_outputs() -> None:
    """Outputs that share memory, or are inputs, come out as on one device."""
    on = mesh(("tp", 2))

    def function(x: torch.Tensor, n: int) -> Any:
        y = x * 2
        return y, y.t(), x, x[1:], n + 1

    x = torch.randn(6, 5)
    given = distribute_tensor(x, on, [Shard(0)]).requires_grad_()
    compiled = torch.compile(function, backend="lynx", options=STRICT)
    results, expected = compiled(given, 3), function(x, 3)
    assert results[2] is given
    assert results[4] == 4
    for a, b in zip(results[:4], expected[:4], strict=True):
        close(a, b, "an output")
    (results[1].sum() + results[3].sum()).backward()
    close(
        given.grad, torch.full((6, 5), 2.0) + torch.cat([torch.zeros(1, 5), torch.ones(5, 5)]), "x"
    )


def sizes_change() -> None:
    """Another batch size is another program; partial inputs are reduced first."""
    from torch.distributed.tensor import Partial  # noqa: PLC0415

    on = mesh(("dp", 2))
    compiled = torch.compile(lambda x: (x * x).sum(1), backend="lynx", options=STRICT)
    for size in (4, 6, 5):
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
        close(compiled(distribute_tensor(x, on, [Shard(0)])), (x * x).sum(1), f"batch {size}")
    half = DTensor.from_local(torch.ones(4, 3), on, [Partial()])
    close(compiled(half), torch.full((4,), 12.0), "of a partial sum")


def leaves_dtensor_calls_alone() -> None:
    on = mesh(("dp", 2))

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to_local() + 1

    x = distribute_tensor(torch.ones(4, 3), on, [Shard(0)])
    assert torch.equal(torch.compile(function, backend="lynx")(x), torch.full((2, 3), 3.0))


def collectives() -> None:
    """Every collective, type and reduction, with pieces that are short and empty."""
    world = torch.distributed.get_world_size()
    groups = Groups(mesh(("a", 2), ("b", world // 2)), 30.0)
    for axes in (("a",), ("b",), ("a", "b"), ("b", "a")):
        group = groups.group(axes)
        everyone = [torch.arange(12).view(4, 3) % 5 - 2 + member for member in range(group.size)]
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64,
                      torch.int16, torch.uint8, torch.bool, torch.complex64):  # fmt: skip
            parts = [part.to(dtype) for part in everyone]
            own, stacked = parts[group.index], torch.stack(parts)
            for reduction, expected in _reductions(stacked).items():
                close(group.all_reduce(own, reduction).float(), expected.float(), reduction)
                for sizes in _pieces(4, group.size):
                    got = group.reduce_scatter(own, 0, sizes, reduction=reduction)
                    piece = expected.split(sizes)[group.index]
                    assert got.dtype == dtype
                    close(got.float(), piece.float(), f"{reduction} {sizes}")
            for sizes in _pieces(4, group.size):
                mine = stacked[0].split(sizes)[group.index]
                assert torch.equal(group.all_gather(mine, 0, sizes), stacked[0])
                cut = next(iter(_pieces(3, group.size)))
                got = group.all_to_all(mine, 0, 1, sizes, cut)
                assert torch.equal(got, stacked[0].split(cut, 1)[group.index])
    nan = torch.tensor([float("nan"), 1.0]) if groups.group(("a",)).index == 0 else torch.zeros(2)
    assert groups.group(("a",)).all_reduce(nan, "max").isnan().tolist() == [True, False]


def _pieces(size: int, count: int) -> list[list[int]]:
    on = mesh_of(mesh(("a", count))) if count == torch.distributed.get_world_size() else None
    even = -(-size // count)
    sizes = [max(0, min(even, size - even * index)) for index in range(count)]
    assert on is None or tuple(sizes) == piece_sizes(Split(("a",)), size, on)
    return [sizes, [size] + [0] * (count - 1), [0] * (count - 1) + [size]]


def _reductions(stacked: torch.Tensor) -> dict[str, torch.Tensor]:
    if stacked.dtype is torch.bool:
        return {"and": stacked.all(0), "or": stacked.any(0)}
    if stacked.is_complex():
        return {}
    found = {"max": stacked.amax(0), "min": stacked.amin(0)}
    if stacked.dtype is not torch.uint8:
        found |= {"sum": stacked.sum(0), "product": stacked.prod(0)}
    return found


def wrong_uses() -> list[str]:
    """Each wrong use is an error before anything changes; returns what they say."""
    on = mesh(("dp", 1), ("tp", 2))
    model = MLP()
    said = []
    for plan, inputs in (
        ({"up.wieght": "tp, _"}, None),
        ({"up.weight": "zz, _"}, None),
        ({"up.weight": "tp, tp"}, None),
        ({"up.weight": "tp, _, _"}, None),
        ({"up.weight": "tp _, _"}, None),
        ("up.weight = tp, _\nup.weight = _, tp", None),
        ("up.weight", {"y": "dp, _"}),
        ({"up.weight": "tp, _"}, {"y": "dp, _"}),
        ({"up.weight": "tp, _; prio 2"}, None),
    ):
        before = [id(one) for one in model.parameters()]
        try:
            lynx.parallelize(model, on, plan, inputs=inputs)
        except (lynx.UsageError, FileNotFoundError) as error:
            said.append(str(error))
        else:
            raise AssertionError(f"{plan} was taken")
        assert before == [id(one) for one in model.parameters()]
    return said


class Constrained(torch.nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.layer = torch.nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return lynx.constrain(self.layer(x), self.text) * 2


def constraints() -> str:
    on = mesh(("tp", 2))
    torch.manual_seed(0)
    for text in ("_, tp", "tp, ...", "_, ?"):
        model = Constrained(text)
        x = torch.randn(4, 8)
        expected = model(x)
        expected.sum().backward()
        grad = model.layer.weight.grad
        parallel = lynx.parallelize(
            copy.deepcopy(model), on, {"layer.weight": "tp, _"}, options=STRICT
        )
        y = parallel(x)
        close(y, expected, text)
        y.sum().backward()
        close(parallel.layer.weight.grad, grad, text)
        placed = copy.deepcopy(model)
        weight = distribute_tensor(placed.layer.weight.detach(), on, [Shard(0)])
        bias = distribute_tensor(placed.layer.bias.detach(), on, [Replicate()])
        placed.layer.weight, placed.layer.bias = map(torch.nn.Parameter, (weight, bias))
        compiled = torch.compile(placed, backend="lynx", options=STRICT)
        z = compiled(distribute_tensor(x, on, [Replicate()]))
        dim = {"_, tp": 1, "tp, ...": 0}.get(text)
        assert dim is None or z.placements == (Shard(dim),)
        close(z, expected, text)
        z.sum().backward()
        close(placed.layer.weight.grad, grad, text)
    model = lynx.parallelize(Constrained("dp, _"), on, {}, options=STRICT)
    try:
        model(torch.randn(4, 8))
    except Exception as error:
        return str(error)
    raise AssertionError("an axis that does not exist was taken")


def checkpoints(folder: str) -> None:
    """Parameters are saved from one mesh and loaded into another plan."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415

    torch.manual_seed(1)
    reference = MLP()
    x = torch.randn(5, 8)
    on = mesh(("tp", 2))
    first = lynx.parallelize(copy.deepcopy(reference), on, {"*.weight": "tp, ..."})
    dcp.save(first.state_dict(), checkpoint_id=folder)
    plan = {"up.weight": "_, tp", "down.*": "tp, ...", "down.bias": "..."}
    second = lynx.parallelize(MLP(), on, plan, options=STRICT)
    state = second.state_dict()
    dcp.load(state, checkpoint_id=folder)
    second.load_state_dict(state)
    close(second(x), reference(x), "after loading")


def from_nothing() -> None:
    """Parameters on the meta device: by their own initial values, or from a state dict."""
    on = mesh(("tp", 2))
    torch.manual_seed(2)
    reference = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3))
    for init in ("meta", reference.state_dict()):
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3))
        torch.manual_seed(2 + torch.distributed.get_rank())
        lynx.parallelize(model, on, {"0.weight": "tp, _"}, init=init, options=STRICT)
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(whole(a), b)


def different_inputs() -> str:
    model = lynx.parallelize(MLP(), mesh(("dp", 2)), {"inputs.0": "dp, _"}, options=STRICT)
    try:
        model(torch.randn(8 + torch.distributed.get_rank(), 8))
    except CommunicationError as error:
        return str(error)
    raise AssertionError("ranks took different inputs")


def different_programs() -> str:
    groups = groups_of(mesh(("tp", 2)), read_settings({"collective_timeout": 20}))
    rank = torch.distributed.get_rank()
    text = f"line 0\nline 1 {'x' if rank else 'y'}\n"
    try:
        Agreement("graph000_forward", text, groups).reach()
    except CommunicationError as error:
        return str(error)
    raise AssertionError("ranks agreed on different programs")


def dies(after: float | None = None) -> tuple[str, float]:
    """Rank 1 is killed in the middle of training; returns what the others say, and when.

    With `after` that is so many seconds from now, whatever the process is doing.
    """
    if after is not None and torch.distributed.get_rank() == 1:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    end = time.monotonic() + (after or 0.0)
    on = mesh(("dp", torch.distributed.get_world_size()))
    model = lynx.parallelize(
        MLP(), on, {"inputs.0": "dp, _"}, options=STRICT | {"collective_timeout": 15}
    )
    for step in range(100_000):
        if after is None and step == 2 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        try:
            model(torch.randn(8, 8)).sum().full_tensor().backward()
        except Exception as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - max(start, end)
    raise AssertionError("nobody noticed")


def cuts_within_blocks() -> None:
    """Placements of blocks: what we cut is what DTensor puts together, and the way back."""
    grid = mesh(("dp", 2), ("tp", 2))
    groups = groups_of(grid, read_settings({}))
    given = torch.arange(24.0 * 3).reshape(24, 3)
    for text in ("tp of 3, _", "dp of 2, tp", "(tp, dp), _", "(dp, tp), _", "_, tp", "(tp, dp), _"):
        sharding = parse_sharding(text, groups.mesh)
        placements = placements_of(sharding, given.shape, grid)
        assert sharding_of_placements(placements, 2, grid) == sharding, text
        part = piece(given, sharding, groups.mesh, groups.coordinates)
        spread = DTensor.from_local(
            part, grid, placements, run_check=False, shape=given.shape, stride=given.stride()
        )
        assert torch.equal(spread.full_tensor(), given), text
        assert torch.equal(gathered_whole(part, sharding, given.shape, groups, text), given), text


class Best(torch.nn.Module):
    """A product whose result is cut along the dimension of which the best are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu().topk(3, -1).values


def explained(door: str) -> tuple[str, list[str], list[str], str, float]:
    """Return what `lynx.explain` says of a model that was distributed through one of the doors."""
    on = mesh(("tp", 2))
    model, x = Best(), torch.randn(4, 8)
    if door == "plan":
        model = lynx.parallelize(model, on, {"layer.weight": "tp, _", "layer.bias": "tp"})
    else:
        for key, one in list(model.layer.named_parameters()):
            part = distribute_tensor(one.data, on, [Shard(0)])
            setattr(model.layer, key, torch.nn.Parameter(part))
        x = distribute_tensor(x, on, [Replicate()])
    found = lynx.explain(model, x).distribution
    assert found.graphs[0].words.names  # names are those of the model
    gathered = next(one for one in found.graphs[0].exchanges if one.kind == "all_gather")
    said = ""
    for name, axis in (("layer.wieght", "tp"), ("layer.weight", "pp")):
        try:
            found.why(name, axis)
        except lynx.UsageError as error:
            said += str(error)
    bias = next(row for graph in found.graphs for row in graph.rows if row.name == "layer.bias")
    assert bias.lies == "tp", bias
    place = f"doors.py:{Best.forward.__code__.co_firstlineno + 1}"
    steps = found.why(f"relu at {place}", "tp")
    outputs = found.why("output 0", "tp")
    torch.compiler.reset()
    RECORDS.reset()
    model(x) if door == "plan" else torch.compile(model, backend="lynx")(x)
    kept = [record.layout for record in RECORDS.graphs]
    assert kept
    assert kept == [None] * len(kept)  # nobody asked
    return str(found), steps, outputs, said, gathered.sent
