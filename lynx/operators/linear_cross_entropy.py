"""The operator `lynx::linear_cross_entropy`: the loss of a projection, without its logits.

`wanted` says, for `x`, the weight and the bias, which gradients the forward computes along with the
loss, for a gradient of one; the backward only scales them. What it lacks it computes by
`lynx::linear_cross_entropy_backward`, going over the logits once more, and so it does for losses of
single tokens, whose gradients cannot be scaled afterwards. Gradients of gradients go through
torch's own operators.

Operands have one element type; autocast does not reach inside. Unwanted gradients are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lynx.backends.reference.linear_cross_entropy import (
    LossForm,
    computing_dtype,
    loss_dtype,
)
from lynx.backends.reference.linear_cross_entropy import (
    linear_cross_entropy as compute,
)
from lynx.backends.reference.linear_cross_entropy import (
    linear_cross_entropy_backward as compute_backward,
)
from lynx.backends.reference.projection_steps import apply_steps, parse_steps

from .transforms import Operator, Optional, Tensors, gradients_by_torch, tangents

_FORWARD = "lynx::linear_cross_entropy"
_BACKWARD = "lynx::linear_cross_entropy_backward"
_OPERANDS = "Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight"
_FORM = "str reduction, int? ignore, float smoothing, str[] steps, bool[] wanted"


torch.library.define(
    _FORWARD,
    f"({_OPERANDS}, Tensor? token_weight, {_FORM}) -> (Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    _BACKWARD,
    f"(Tensor grad, {_OPERANDS}, Tensor? token_weight, Tensor? unit_x, Tensor? unit_weight, "
    f"Tensor? unit_bias, {_FORM}) -> (Tensor, Tensor, Tensor)",
)


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional,
    target: torch.Tensor,
    class_weight: Optional = None,
    token_weight: Optional = None,
    reduction: str = "mean",
    ignore: int | None = -100,
    smoothing: float = 0.0,
    steps: Sequence[str] = (),
    wanted: Sequence[bool] = (True, True, True),
) -> torch.Tensor:
    """Return the cross-entropy of `steps(x @ weight.T + bias)` with target classes.

    `x` is `[*tokens, features]`, `weight` `[classes, features]`, `target` `[*tokens]`; the losses
    of tokens are multiplied by `token_weight`, of the shape of `target`, before they are summed
    (only with the reduction `sum`). `wanted` says which of the gradients to compute at once.
    """
    form = (reduction, ignore, smoothing, list(steps), list(wanted))
    results: Tensors = _Loss.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, target, class_weight, token_weight, *form
    )
    return results[0]


@torch.library.impl(_FORWARD, "default")
def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional,
    target: torch.Tensor,
    class_weight: Optional,
    token_weight: Optional,
    reduction: str,
    ignore: int | None,
    smoothing: float,
    steps: list[str],
    wanted: list[bool],
) -> Tensors:
    _check(x, weight, bias, target, token_weight, reduction, wanted)
    form = LossForm(reduction, ignore, smoothing, tuple(steps))
    loss, gradients = compute(
        x, weight, bias, target, class_weight, token_weight, form, _given(wanted, bias)
    )
    return (loss, *_present(gradients, x))


@torch.library.register_fake(_FORWARD)  # type: ignore[untyped-decorator]
def _fake_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional,
    target: torch.Tensor,
    class_weight: Optional,
    token_weight: Optional,
    reduction: str,
    ignore: int | None,
    smoothing: float,
    steps: list[str],
    wanted: list[bool],
) -> Tensors:
    _check(x, weight, bias, target, token_weight, reduction, wanted)
    shape = target.shape if reduction == "none" else ()
    loss = x.new_empty(shape, dtype=loss_dtype(x.dtype, steps))
    dtype = computing_dtype(x.dtype)
    return (loss, *_like((x, weight, bias), _given(wanted, bias), x, dtype))


@torch.library.impl(_BACKWARD, "default")
def _backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional,
    target: torch.Tensor,
    class_weight: Optional,
    token_weight: Optional,
    unit_x: Optional,
    unit_weight: Optional,
    unit_bias: Optional,
    reduction: str,
    ignore: int | None,
    smoothing: float,
    steps: list[str],
    wanted: list[bool],
) -> Tensors:
    units = (unit_x, unit_weight, unit_bias)
    asked = _given(wanted, bias)
    missing = [want and unit is None for want, unit in zip(asked, units, strict=True)]
    computed: Sequence[Optional] = (None, None, None)
    if any(missing):
        form = LossForm(reduction, ignore, smoothing, tuple(steps))
        computed = compute_backward(
            grad, x, weight, bias, target, class_weight, token_weight, form, missing
        )
    scaled = [unit * grad if want and unit is not None else None
              for want, unit in zip(asked, units, strict=True)]  # fmt: skip
    found = [a if a is not None else b for a, b in zip(computed, scaled, strict=True)]
    return _present([None if g is None else g.to(x.dtype) for g in found], x)


@torch.library.register_fake(_BACKWARD)  # type: ignore[untyped-decorator]
def _fake_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Tensors:
    weight, bias, wanted = rest[0], rest[1], rest[-1]
    return _like((x, weight, bias), _given(wanted, bias), x, x.dtype)


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional,
    target: torch.Tensor,
    token_weight: Optional,
    reduction: str,
    wanted: list[bool],
) -> None:
    """Raise `ValueError` for operands that do not belong together."""
    if weight.dim() != 2:
        raise ValueError(f"expects a matrix as weight, got {weight.dim()}-d")
    if x.dim() != target.dim() + 1:
        raise ValueError(
            f"expects a target for each token, got x {x.dim()}-d, target {target.dim()}-d"
        )
    for operand in (weight, bias):
        if operand is not None and operand.dtype != x.dtype:
            raise ValueError(f"expects operands of one type, got {x.dtype} and {operand.dtype}")
    if target.is_floating_point():
        raise ValueError("expects classes as targets, got probabilities")
    if token_weight is not None and reduction != "sum":
        raise ValueError(f"weighs tokens in sums only, not in '{reduction}'")
    if reduction == "none" and any(wanted):
        raise ValueError("cannot compute gradients before that of each token's loss is known")


def _given(wanted: Sequence[bool], bias: Optional) -> list[bool]:
    return [wanted[0], wanted[1], wanted[2] and bias is not None]


def _present(gradients: Sequence[Optional], x: torch.Tensor) -> Tensors:
    return tuple(x.new_empty(0) if g is None else g for g in gradients)


def _like(
    operands: Sequence[Optional], wanted: Sequence[bool], x: torch.Tensor, dtype: torch.dtype
) -> Tensors:
    return tuple(
        torch.empty_like(operand, dtype=dtype) if want and operand is not None else x.new_empty(0)
        for operand, want in zip(operands, wanted, strict=True)
    )


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    *operands, reduction, ignore, smoothing, steps, wanted = inputs
    units = [output[1 + n] if want else None for n, want in enumerate(_given(wanted, operands[2]))]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*operands, *units)
    ctx.save_for_forward(*operands, output[0])
    ctx.form = (reduction, ignore, smoothing, steps)


def _differentiate(ctx: Any, grad: Optional, *_: Any) -> tuple[Any, ...]:
    _refuse(ctx.needs_input_grad[3:6])
    nothing = (None,) * 11
    if grad is None:
        return nothing
    *operands, unit_x, unit_weight, unit_bias = ctx.saved_tensors
    units = (unit_x, unit_weight, unit_bias)
    needed = list(ctx.needs_input_grad[:3])
    known = all(unit is not None for unit, need in zip(units, needed, strict=True) if need)
    if known and not torch.is_grad_enabled():
        gradients = [
            (unit * grad).to(operands[0].dtype) if need else None
            for unit, need in zip(units, needed, strict=True)
        ]
    else:
        results = _Gradients.apply(  # type: ignore[no-untyped-call]
            grad, *operands, *units, *ctx.form, needed
        )
        gradients = [g if need else None for g, need in zip(results, needed, strict=True)]
    return (*gradients, *nothing[3:])


def _refuse(moves: Sequence[Any]) -> None:
    if any(moves):
        raise NotImplementedError("the weights of classes and of tokens have no gradients")


def _tangents(ctx: Any, *directions: Any) -> tuple[Any, ...]:
    """Return how the loss changes; the gradients that come with it count as constants."""
    _refuse([direction is not None for direction in directions[3:6]])
    *operands, loss = ctx.saved_tensors
    moves = [direction is not None for direction in directions[:3]]
    gradients = _gradients(operands[3:], ctx.form, moves)
    found = tangents(lambda g: gradients(g, *operands[:3]), (loss,), directions[:3])
    return (*found, None, None, None)


def _gradients(
    rest: Sequence[Any], form: tuple[Any, ...], wanted: Sequence[bool]
) -> Callable[..., list[Optional]]:
    """Return the function that gives gradients of x, weight and bias: what eager does."""

    def gradients(grad: torch.Tensor, *operands: Optional) -> list[Optional]:
        def losses(x: torch.Tensor, weight: torch.Tensor, bias: Optional) -> Tensors:
            return (composite(x, weight, bias, *rest, *form),)

        return gradients_by_torch(losses, operands, (grad,), wanted)

    return gradients


def _keep_for_second_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    grad, *operands = inputs[:7]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad, *operands)
    ctx.save_for_forward(grad, *operands)
    ctx.form, ctx.wanted = inputs[10:14], _given(inputs[14], inputs[3])
    ctx.mark_non_differentiable(
        *(empty for empty, want in zip(output, ctx.wanted, strict=True) if not want)
    )


def _differentiate_twice(ctx: Any, *grads: Optional) -> tuple[Any, ...]:
    """Differentiate the gradients, holding the logits: what eager does."""
    sources, rest = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    incoming = [g if want else None for g, want in zip(grads, ctx.wanted, strict=True)]
    gradients = _gradients(rest, ctx.form, ctx.wanted)
    found = gradients_by_torch(gradients, sources, incoming, ctx.needs_input_grad[:4])
    return (*found, *(None,) * 11)


def _tangents_of_gradients(ctx: Any, *directions: Any) -> tuple[Any, ...]:
    sources, rest = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    gradients = _gradients(rest, ctx.form, ctx.wanted)
    moves = [direction is not None for direction in directions[:4]]
    places = [n for n, want in enumerate(ctx.wanted) if want]

    def second(*incoming: torch.Tensor) -> list[Optional]:
        given: list[Optional] = [None] * 3
        for place, gradient in zip(places, incoming, strict=True):
            given[place] = gradient
        return gradients_by_torch(gradients, sources, given, moves)

    found = iter(tangents(second, [sources[1 + place] for place in places], directions[:4]))
    return tuple(next(found) if want else None for want in ctx.wanted)


def composite(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional,
    target: torch.Tensor,
    class_weight: Optional,
    token_weight: Optional,
    reduction: str,
    ignore: int | None,
    smoothing: float,
    steps: Sequence[str],
) -> torch.Tensor:
    """Return the same loss by way of the logits, in operators of torch."""
    logits = apply_steps(torch.nn.functional.linear(x, weight, bias), parse_steps(steps))
    losses = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        target.reshape(-1),
        class_weight,
        ignore_index=-100 if ignore is None else ignore,
        label_smoothing=smoothing,
        reduction="mean" if reduction == "mean" else "none",
    )
    if reduction == "mean":
        return losses
    if token_weight is not None:
        losses = losses * token_weight.reshape(-1)
    return losses.sum() if reduction == "sum" else losses.reshape(target.shape)


class _Loss(Operator):
    """The operator for transforms of `torch.func`."""

    @staticmethod
    def forward(*args: Any) -> Tensors:
        results: Tensors = torch.ops.lynx.linear_cross_entropy(*args)
        return results

    setup_context = staticmethod(_keep_for_backward)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(_tangents)


class _Gradients(Operator):
    """The same for the operator of its gradients."""

    @staticmethod
    def forward(*args: Any) -> Tensors:
        results: Tensors = torch.ops.lynx.linear_cross_entropy_backward(*args)
        return results

    setup_context = staticmethod(_keep_for_second_backward)
    backward = staticmethod(_differentiate_twice)
    jvp = staticmethod(_tangents_of_gradients)


for _name, _function, _formula, _setup in (
    (_FORWARD, _Loss, _differentiate, _keep_for_backward),
    (_BACKWARD, _Gradients, _differentiate_twice, _keep_for_second_backward),
):
    torch.library.register_autograd(_name, _formula, setup_context=_setup)
    torch.library.register_vmap(_name, _function.vmap)
