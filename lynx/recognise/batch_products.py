"""Let products of matrices over several batch axes run without copies of their operands."""

from __future__ import annotations

import torch
import torch.fx

from lynx.compat import is_plain_fake, statically_equal
from lynx.operators import matmul


def spare_copies_of_batches(graph: torch.fx.Graph) -> int:
    """Replace `torch.matmul` by `lynx::matmul` where it would flatten batch axes; return how often.

    Both operands are floating CPU tensors of one rank, four or more, with equal batch axes.
    """
    count = 0
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.matmul and _fits(node):
            node.target = matmul
            count += 1
    return count


def _fits(node: torch.fx.Node) -> bool:
    if len(node.args) != 2 or node.kwargs:
        return False
    values = [
        a.meta.get("example_value") if isinstance(a, torch.fx.Node) else None for a in node.args
    ]
    a, b = values
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    if not (is_plain_fake(a) and is_plain_fake(b)):
        return False
    if a.device.type != "cpu" or b.device.type != "cpu" or not a.is_floating_point():
        return False
    if not b.is_floating_point() or a.dim() != b.dim() or a.dim() < 4:
        return False
    return all(
        statically_equal(one, other) for one, other in zip(a.shape[:-2], b.shape[:-2], strict=True)
    )
