"""Runs on each process: models with effects, and models that only torch can run."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard

import lynx
from tests.distribution import doors


class Checked(torch.nn.Module):
    """Inverses and factors of matrices, of which torch checks that they exist: an effect."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrices = self.layer(x).view(-1, 5, 5) + 5 * torch.eye(5)
        positive = matrices @ matrices.mT
        return torch.linalg.inv(matrices).sum((1, 2)) + torch.linalg.cholesky(positive).sum((1, 2))


class Chosen(torch.nn.Module):
    """As many results as data say, a changed buffer, and an input that is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 7)
        self.register_buffer("seen", torch.zeros(7))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        with torch.no_grad():
            self.seen.add_(y.mean(0))
        return y[x[:, 0] > 0], x, y.pow(2).mean()


class Given(torch.nn.Module):
    """Results that are an input and a parameter, in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 7)

    def forward(self, x: torch.Tensor) -> Any:
        return {"y": self.layer(x), "given": (x, [self.layer.weight])}


def inputs_as_outputs() -> list[str]:
    """Inputs and parameters come out as they are, and not what stood for them."""
    on = doors.mesh(("dp", dist.get_world_size()))
    plan = {"inputs.x": "dp, _", "layer.weight": "dp, _"}
    model = lynx.parallelize(Given(), on, plan, options=doors.STRICT)
    x = torch.randn(5, 6)
    for _ in range(2):
        results = model(x)
        assert list(results) == ["y", "given"]
        same, (weight,) = results["given"]
        assert same is x
        assert weight is model.layer.weight
    return doors.fallbacks()


def with_effects() -> list[str]:
    """Compare a model with effects with one process; return what did not compile."""
    torch.manual_seed(0)
    reference = Checked()
    on = doors.mesh(("dp", dist.get_world_size()))
    plan = {"inputs.x": "dp, _", "layer.weight": "dp, _", "layer.bias": "dp"}
    model = lynx.parallelize(copy.deepcopy(reference), on, plan, options=doors.STRICT)
    x = torch.randn(5, 6)
    wanted, found = reference(x), doors.whole(model(x))
    doors.close(found, wanted, "output")
    wanted.pow(2).sum().backward()
    found.pow(2).sum().backward()
    doors.close(model.layer.weight.grad, reference.layer.weight.grad, "gradient")
    return doors.fallbacks()


def left_to_torch() -> list[str]:
    """Compare a model that cannot be compiled with one process; return what is said of it."""
    torch.manual_seed(0)
    reference = Chosen()
    on = doors.mesh(("dp", dist.get_world_size()))
    plan = {
        "inputs.x": "dp, _", "layer.weight": "dp, _", "layer.bias": "dp", "seen": "dp",
    }  # fmt: skip
    model = lynx.parallelize(copy.deepcopy(reference), on, plan)
    said: list[str] = []
    for _ in range(2):
        x = torch.randn(9, 6)
        with warnings.catch_warnings(record=True) as caught:
            rows, same, loss = model(x)
        said += [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
        assert same is x
        wanted, _, wanted_loss = reference(x)
        doors.close(doors.whole(rows), wanted, "rows")
        (doors.whole(rows).sum() + doors.whole(loss)).backward()
        (wanted.sum() + wanted_loss).backward()
    doors.close(model.seen, reference.seen, "buffer")
    assert model.seen.placements == (Shard(0),)
    for name, parameter in reference.named_parameters():
        doors.close(model.get_parameter(name).grad, parameter.grad, name)
    return said
