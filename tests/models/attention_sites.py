"""Count attention in the graphs of Dynamo, knowing nothing of how Lynx finds it; print a table.

A site is a call of `scaled_dot_product_attention`, or a softmax whose input comes from a product
and whose result goes into one, through nothing that has weights or mixes rows.
`python -m tests.models.attention_sites [FAMILY ...]` prints what was recognised of each family.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from lynx.normalize import normalize
from lynx.recognise import recognise
from tests.models import families
from tests.models.test_huggingface import inputs_of, without_cache

PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "mm")
BARRIERS = (*PRODUCTS, "linear", "conv", "norm", "embedding", "gelu", "silu", "topk", "addmm")


@dataclass
class Count:
    """How many sites there are, how many were recognised, and why others were not."""

    sites: int = 0
    found: int = 0
    reasons: list[str] = field(default_factory=list)


def name_of(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def sites_in(graph: torch.fx.Graph) -> int:
    """Return the number of sites in a graph that nothing was done to."""
    count = 0
    for node in graph.nodes:
        name = name_of(node)
        if name == "scaled_dot_product_attention":
            count += 1
        elif name.strip("_") in ("softmax", "safe_softmax"):
            behind = _reaches(node, lambda n: n.users)
            before = _reaches(node, lambda n: n.all_input_nodes)
            count += behind and before
    return count


def _reaches(start: torch.fx.Node, step: Callable[[Any], Iterable[torch.fx.Node]]) -> bool:
    """Whether a product is next in one direction, before anything with weights."""
    seen = {start}
    stack = [start]
    while stack:
        for node in step(stack.pop()):
            name = name_of(node)
            if name in PRODUCTS:
                return True
            if node in seen or any(word in name for word in BARRIERS):
                continue
            seen.add(node)
            stack.append(node)
    return False


def counting(count: Count) -> Callable[..., Any]:
    """Return a back end that recognises, counts, and runs what comes out as torch would."""

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        normal = normalize(module)
        count.sites += sites_in(normal.graph)
        remarks = recognise(normal, 1 << 60)
        normal.graph.lint()
        count.found += sum(
            node.target is torch.ops.lynx.attention.default for node in normal.graph.nodes
        )
        count.reasons += [
            f"{remark.message} ({remark.loc})"
            for remark in remarks
            if remark.subject == "attention" and remark.message.startswith("not")
        ]
        forward: Callable[..., Any] = normal.forward
        return forward

    return backend


def count_family(name: str, attention: str, *, training: bool) -> Count:
    """Run one step of a family and count."""
    torch._dynamo.reset()
    model = families.build(name, attention)
    model = model.train() if training else model.eval()
    count = Count()
    with torch.set_grad_enabled(training):
        result = torch.compile(model, backend=counting(count))(
            **inputs_of(name), **without_cache(name)
        )
    if training:
        result.loss.backward()
    return count


def main(names: list[str]) -> None:
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    for name in names or list(families.FAMILIES):
        row = [f"{name:14}"]
        reasons: list[str] = []
        for attention in ("eager", "sdpa"):
            for training in (False, True):
                try:
                    count = count_family(name, attention, training=training)
                except ValueError:
                    row.append("   -")
                    continue
                row.append(f"{count.found:2}/{count.sites}")
                reasons += [f"{attention}: {reason}" for reason in count.reasons]
        print(" ".join(row), *dict.fromkeys(reasons), sep="\n    ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
