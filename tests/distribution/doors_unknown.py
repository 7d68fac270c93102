"""Runs on each process: operators that Lynx does not know, cut by rules that trials find."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import lynx
from lynx.records import RECORDS
from tests.distribution import doors
from tests.distribution.unknown import scaled


class Unknown(torch.nn.Module):
    """Images that are sampled and padded, factors of matrices, an operator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.columns = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 4))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        sampled = F.grid_sample(x * self.channels[:, None, None], places, align_corners=False)
        padded = F.pad(sampled, (1, 1, 1, 1), mode="reflect")
        larger = F.interpolate(padded, scale_factor=2.0, mode="bilinear").mean((2, 3))
        matrices = larger[:, :, None] * larger[:, None, :] + torch.eye(4)
        factors = torch.linalg.cholesky_ex(matrices).L
        return scaled(factors.flatten(1), self.columns.repeat(4))


def trained() -> list[Any]:
    """Outputs and gradients of a batch of five on two processes, and what was said and moved."""
    torch.manual_seed(0)
    reference = Unknown()
    model = lynx.parallelize(
        copy.deepcopy(reference), doors.mesh(("dp", 2)), {"inputs.*": "dp, ..."},
        options=doors.STRICT,
    )  # fmt: skip
    x, places = torch.randn(5, 4, 6, 6), torch.rand(5, 3, 7, 2) * 2 - 1
    state = torch.get_rng_state()
    explanation = lynx.explain(model, x, places)
    assert torch.equal(torch.get_rng_state(), state)
    results = [one(x, places) for one in (model, reference)]
    doors.close(*results, "the output")
    for result in results:
        result.square().sum().backward()
    for (name, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
        doors.close(a.grad, b.grad, f"gradient of {name}")
    moved = [str(one) for graph in explanation.distribution.graphs for one in graph.exchanges]
    said = {remark.message.split("'")[1] for remark in explanation.remarks
            if remark.message.endswith("found by trials")}  # fmt: skip
    assert all(not record.fallback for record in RECORDS.graphs)
    return [sorted(said), moved]
