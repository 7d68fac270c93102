"""Derivatives of operators of our own: of higher order, forward, and in transforms of `torch.func`.

They go through the same function, or its gradients, written in operators of torch. All of it is
done by `torch.func.vjp`, which gives operands a level of their own: an incoming gradient may be
computed of the operands, and these of each other, which is counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Optional = torch.Tensor | None
Tensors = tuple[torch.Tensor, ...]
Rule = tuple[Tensors, Any]


def gradients_by_torch(
    function: Callable[..., Sequence[Optional]],
    operands: Sequence[Optional],
    incoming: Sequence[Optional],
    wanted: Sequence[bool],
) -> list[Optional]:
    """Return the wanted gradients of a function of operators of torch, None of the others.

    `incoming` has the gradient of each result, None of those that nothing depends on.
    """
    chosen = [n for n, want in enumerate(wanted) if want and operands[n] is not None]
    given = [n for n, gradient in enumerate(incoming) if gradient is not None]
    found: list[Optional] = [None] * len(operands)
    if not chosen or not given:
        return found

    def of_chosen(*sources: torch.Tensor) -> Tensors:
        all_of_them = list(operands)
        for place, source in zip(chosen, sources, strict=True):
            all_of_them[place] = source
        results = function(*all_of_them)
        return tuple(_present(results[place]) for place in given)

    results, pull = _vjp(of_chosen, *(_present(operands[n]) for n in chosen))
    seeds = (_present(incoming[n]) for n in given)
    gradients = pull(tuple(g.to(r.dtype) for g, r in zip(seeds, results, strict=True)))
    for place, gradient in zip(chosen, gradients, strict=True):
        found[place] = gradient
    return found


def tangents(
    gradients: Callable[..., Sequence[Optional]],
    results: Sequence[torch.Tensor],
    directions: Sequence[Optional],
) -> Tensors:
    """Return how results change when operands move in some directions.

    `gradients` gives those of all operands that move, for incoming gradients of the results: it is
    linear in these, so that its own gradient needs only the directions.
    """
    moves = [direction is not None for direction in directions]

    def of_moving(*incoming: torch.Tensor) -> Tensors:
        found = gradients(*incoming)
        return tuple(_present(g) for g, moving in zip(found, moves, strict=True) if moving)

    found, push = _vjp(of_moving, *map(torch.zeros_like, results))
    ways = (direction for direction in directions if direction is not None)
    return push(tuple(way.to(g.dtype) for way, g in zip(ways, found, strict=True)))


def _vjp(
    function: Callable[..., Tensors], *operands: torch.Tensor
) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    results, pull = torch.func.vjp(function, *operands)[:2]
    return results, pull


def _present(tensor: Optional) -> torch.Tensor:
    assert tensor is not None, "an operand, or a gradient, that there is"
    return tensor


class Operator(torch.autograd.Function):
    """An operator for transforms of `torch.func`, which do not see into those of a library."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Rule:
        """Call it for each element of a batch and put the results together."""
        results = [
            cls.apply(  # type: ignore[no-untyped-call]
                *(
                    item.select(dim, index) if isinstance(dim, int) else item
                    for item, dim in zip(args, in_dims, strict=True)
                )
            )
            for index in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)
