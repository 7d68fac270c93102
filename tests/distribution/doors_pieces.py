"""Rows, keys and windows in pieces, on real processes: the same numbers as one process gives."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor

import lynx
from lynx.ir.ops.schedule import Start
from lynx.passes import NAMED_PIPELINES
from tests.distribution import doors


class Pieces(torch.nn.Module):
    """Ops whose rows, keys or windows are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 5, 2, 2)

    def forward(
        self, image: torch.Tensor, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
        v: torch.Tensor, seen: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        attended = F.scaled_dot_product_attention(q, k, v, seen)
        found = (x.argmax(-1), *x.max(-1), *x.min(-1), x.topk(2).values)
        return attended, self.patches(image), x.nan_to_num(0, 3, -3).cumsum(-1), *found


def in_pieces() -> list[str]:
    """Cut rows, keys and windows; NaN lies on each process, and some queries see no key of one."""
    torch.manual_seed(4)
    reference = Pieces()
    plan = {"inputs.image": "_, _, tp, _", "inputs.x": "_, tp", "inputs.[kv]": "_, _, tp, _"}
    given = doors.mesh(("tp", dist.get_world_size()))
    model = lynx.parallelize(copy.deepcopy(reference), given, plan, options=doors.STRICT)
    x = torch.randint(-3, 4, (6, 13)).float()
    for row, place in enumerate((0, 5, 12)):
        x[row, place] = torch.nan
    x[3, 1], x[4, 12] = torch.inf, -torch.inf
    q, k, v = (torch.randn(2, 2, size, 8) for size in (3, 65, 65))
    seen = torch.arange(65) <= torch.tensor([0, 30, 64])[:, None]
    arguments = [torch.randn(2, 3, 16, 8), x, q, k, v, seen]
    with torch.no_grad():
        for place, (a, b) in enumerate(zip(model(*arguments), reference(*arguments), strict=True)):
            torch.testing.assert_close(
                doors.whole(a),
                b,
                rtol=2e-4,
                atol=2e-5,
                equal_nan=True,
                msg=lambda t, n=place: f"{n}: {t}",
            )
    leaves = [[one.clone().requires_grad_() for one in (q, k, v)] for _ in range(2)]
    for layer, (a, b, c) in zip((model, reference), leaves, strict=True):
        attended, patches, *_ = layer(arguments[0], x, a, b, c, seen)
        (doors.whole(attended).square().sum() + doors.whole(patches).square().sum()).backward()
    for a, b in zip(*leaves, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        doors.close(a.grad, b.grad, "gradient")
    doors.close(model.patches.weight.grad, reference.patches.weight.grad, "gradient of patches")
    return doors.fallbacks()


def one_class_two_plans() -> list[list[str]]:
    """Distribute two models of one class otherwise: what one is compiled to does not serve both."""
    torch.manual_seed(5)
    reference, x = doors.Best(), torch.randn(4, 8)
    found: list[list[str]] = []
    for axis, plan in (("dp", {"inputs.*": "dp, _"}), ("tp", {"layer.weight": "tp, _"})):
        doors.RECORDS.reset()
        on = doors.mesh((axis, 2))
        model = lynx.parallelize(copy.deepcopy(reference), on, plan, options=doors.STRICT)
        doors.close(model(x), reference(x), axis)
        graphs = [graph.distributed for graph in doors.RECORDS.graphs]
        found.append([str(graph.mesh) for graph in graphs if graph is not None])
    return found


def buckets_change_no_bit(plan: str) -> list[str]:
    """Train with what travels in buckets, and with each tensor alone: all bits are the same.

    Returns what is said of buckets.
    """
    alone = str(NAMED_PIPELINES["default"]).replace("start-buckets,", "")
    processes = dist.get_world_size()
    rules = doors.PLANS[plan][1]
    models = []
    said: list[str] = []
    for options in ({}, {"pipeline": alone}):
        doors.RECORDS.reset()
        torch.manual_seed(6)
        on = doors.mesh(("dp", processes))
        given = doors.STRICT | options
        model = lynx.parallelize(doors.GPT(), on, rules, options=given)
        tokens = torch.randint(29, (2 * processes + 1, 7))
        model(tokens, tokens.roll(-1, 1)).backward()
        models.append(model)
        graphs = [one.program.ops for one in doors.RECORDS.graphs]
        counts = [len(op.xs) for ops in graphs for op in ops if isinstance(op, Start)]
        assert (max(counts) > 1) == (not options)
        said += [r.message for one in doors.RECORDS.graphs for r in one.remarks]
    for (name, one), other in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        assert isinstance(one.grad, DTensor)
        assert isinstance(other.grad, DTensor)
        here, there = one.grad.to_local(), other.grad.to_local()
        assert torch.equal(here, there), name
        if plan == "ddp":  # all processes have the same
            every = [torch.empty_like(here) for _ in range(processes)]
            dist.all_gather(every, here)
            assert all(torch.equal(here, part) for part in every), name
    return [text for text in said if "travel in" in text]
