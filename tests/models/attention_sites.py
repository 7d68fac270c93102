"""Count attention in the graphs of Dynamo, knowing nothing of how Lynx finds it; print a table.

A site is a call of `scaled_dot_product_attention`, or a softmax whose input comes from a product
and whose result goes into one, through nothing that has weights or mixes rows.
`python -m tests.models.attention_sites [--write] [FAMILY ...]` prints what was recognised of each
family, and writes the page for the documentation.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.fx

from lynx.normalize import normalize
from lynx.recognise import recognise
from tests.models import families
from tests.models.test_huggingface import inputs_of, without_cache

DOCUMENT = Path(__file__).parents[2] / "docs" / "attention-models.md"

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


COLUMNS = tuple((a, t) for a in ("eager", "sdpa") for t in (False, True))
"""Implementations of attention, in inference and in training."""


@dataclass
class Row:
    """What was found of a family: `recognised/total` for each of `COLUMNS`, and the reasons."""

    family: str
    cells: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def row_of(name: str) -> Row:
    """Count a family; a cell is `-` where there is no such implementation."""
    row = Row(name)
    for attention, training in COLUMNS:
        try:
            count = count_family(name, attention, training=training)
        except ValueError:
            row.cells.append("-")
            continue
        row.cells.append(f"{count.found}/{count.sites}")
        row.reasons += [f"{attention}: {reason}" for reason in count.reasons]
    row.reasons = list(dict.fromkeys(row.reasons))
    return row


PAGE = """\
# Attention in model families

Small models of Hugging Face's transformers, each with both of its implementations of attention, in
inference and in training. A site is a call of `scaled_dot_product_attention`, or a softmax between
two products, counted in Dynamo's graphs without the recogniser's help; a cell is what the
recogniser found of them. Models with a `-` have no such implementation.
`.venv/bin/python -m tests.models.attention_sites --write` makes this page.
"""


def page(rows: Iterable[Row]) -> str:
    """Return the table as a page, with what was missed below it."""
    heads = [f"{a}, {'training' if t else 'inference'}" for a, t in COLUMNS]
    lines = [
        PAGE,
        f"| {'family':<14} | {' | '.join(heads)} |",
        f"| :{'-' * 13} | {' | '.join('-' * (len(h) - 1) + ':' for h in heads)} |",
    ]
    rows = list(rows)
    for row in rows:
        cells = (f"{cell:>{len(head)}}" for cell, head in zip(row.cells, heads, strict=True))
        lines.append(f"| {row.family:<14} | {' | '.join(cells)} |")
    counts = [tuple(map(int, c.split("/"))) for row in rows for c in row.cells if c != "-"]
    found, total = (sum(n) for n in zip(*counts, strict=True)) if counts else (0, 0)
    lines += ["", f"Together {found} of {total} sites in {len(rows)} families."]
    missed = [(row.family, reason) for row in rows for reason in row.reasons]
    if missed:
        lines += ["", "## Softmaxes that were left as they are, and why", ""]
        lines += [f"- {family}, {short(reason)}" for family, reason in missed]
    return "\n".join(lines) + "\n"


def short(reason: str) -> str:
    """Return a reason with the file in place of the path to it."""
    return re.sub(r"\((?:/[^/ ():]+)*/(?=[^/ ():]+:\d+)", "(", reason)


def main(arguments: list[str]) -> None:
    """Print the table of the families named, or of all; with `--write`, write the page of all."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    writes = "--write" in arguments
    names = [name for name in arguments if name != "--write"] or list(families.FAMILIES)
    rows: list[Row] = []
    for name in names:
        row = row_of(name)
        rows.append(row)
        print(f"{name:14}", *row.cells, *(f"\n    {reason}" for reason in row.reasons), flush=True)
    if writes:
        DOCUMENT.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
