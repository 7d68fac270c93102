"""Recognisers: find what a model means in its Dynamo graph, before autograd takes it apart.

Each replaces what it finds by an operator of `lynx.operators`, and says why it leaves the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx

from lynx.passes import Remark

from .attention import fuse_attention
from .batch_products import spare_copies_of_batches
from .linear_cross_entropy import fuse_linear_cross_entropy
from .nodes import fold_sizes, name_of

_LOSSES = ("cross_entropy", "nll_loss", "log_softmax", "logsumexp")
__all__ = ["recognise"]


def recognise(
    module: torch.fx.GraphModule,
    minimum_logits_bytes: int,
    attention_devices: Sequence[str] = ("cpu", "cuda"),
) -> list[Remark]:
    """Rewrite a normalized Dynamo graph in place; return what was done and what not, with reasons.

    Logits of less than `minimum_logits_bytes` are left to the projection and the loss, attention on
    other types of devices than `attention_devices` to what the model calls.
    """
    remarks = list(fuse_attention(module.graph, attention_devices))
    if not any(name_of(node) in _LOSSES for node in module.graph.nodes):
        if remarks:
            module.recompile()
        return remarks
    fold_sizes(module.graph)
    remarks += fuse_linear_cross_entropy(module.graph, minimum_logits_bytes)
    if spare_copies_of_batches(module.graph) or remarks:
        module.recompile()
    return remarks
