"""Which tokens need be looked at: those whose loss counts, where that cannot change a number.

A model that predicts a few masked words, or only answers, ignores most of its targets. What an
ignored token adds to gradients is zero times what its logits say, and so it is zero, or not a
number if the logits are not finite. The bounds of the operands tell that they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .projection_steps import parse_steps

WORTH_SKIPPING = 16
"""One in so many tokens must count for nothing: what is skipped must pay for copying the rest."""


def counted_tokens(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    ignore: int | None,
    steps: Sequence[str],
) -> torch.Tensor | None:
    """Return the positions of the tokens that count, None if all had better be looked at."""
    if x.is_cuda or (ignore is None and token_weight is None):  # looking would mean to wait
        return None
    flat = target.reshape(-1)
    skipped = torch.zeros_like(flat, dtype=torch.bool) if ignore is None else flat == ignore
    if token_weight is not None:
        weights = token_weight.reshape(-1)
        is_class = (flat >= 0) & (flat < weight.shape[0])
        skipped = torch.where(skipped, torch.isfinite(weights), (weights == 0) & is_class)
    kept = torch.nonzero(~skipped).squeeze(1)
    if (flat.numel() - kept.numel()) * WORTH_SKIPPING < flat.numel() or not flat.numel():
        return None
    if class_weight is not None and not bool(torch.isfinite(class_weight).all()):
        return None
    return kept if _has_finite_logits(x, weight, bias, steps) else None


def _has_finite_logits(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, steps: Sequence[str]
) -> bool:
    """Whether the largest logits that operands of such size could give are finite."""
    bound = _largest(x) * _largest(weight) * weight.shape[1]
    bound += 0.0 if bias is None else _largest(bias)
    limit = torch.finfo(x.dtype).max
    factor = 1.0
    for step in parse_steps(steps):
        if step.dtype is not None:
            limit = min(limit, torch.finfo(step.dtype).max)
        elif step.kind == "multiply":
            factor *= max(1.0, abs(step.number))
        elif step.kind == "divide" and step.number:
            factor *= max(1.0, 1 / abs(step.number))
        elif step.kind == "divide":
            return False
    return bound * factor < limit / 4


def _largest(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high)) if low == low else float("nan")
