"""Cross-entropy of a linear projection, chunk by chunk over the tokens: no logits as a whole.

The logits of a chunk are computed, turned into losses and into the gradient with respect to the
logits while they are in cache, and multiplied out into the gradients of the operands before the
next chunk overwrites them. That the gradients are those of a loss with gradient one and can be
scaled afterwards is the idea of Liger-Kernel (Hsu et al., arXiv:2410.10989).

Low-precision operands are multiplied in `f32` on a CPU, whose low-precision products are several
times slower; logits are rounded where a model would round them, gradients are not rounded on the
way. Which gradients there are is part of the call, so that none is computed in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .counted_tokens import counted_tokens
from .projection_steps import differentiate, parse_steps, transform

CHUNK_BYTES = 32 << 20
"""Memory for the logits of a chunk, unless that would be too few tokens for fast products."""

FEWEST_TOKENS, MOST_TOKENS = 256, 1024
"""Bounds of a chunk: with fewer tokens adding to the weight's gradient costs more than computing
it, with more nothing gets faster."""

BLOCK_BYTES = 2 << 20
"""Logits worked on at a time: what stays in the caches from one sweep to the next."""


@dataclass(frozen=True)
class LossForm:
    """What is computed from the logits.

    `reduction` is none, mean or sum. Targets equal to `ignore` count as nothing (None: there is no
    such class). `smoothing` is the part of the target distribution that is uniform. `steps` are
    applied to the logits before the softmax, see `projection_steps`.
    """

    reduction: str = "mean"
    ignore: int | None = -100
    smoothing: float = 0.0
    steps: tuple[str, ...] = ()


class TargetError(IndexError, RuntimeError):
    """A target that is no class: eager raises one or the other, by the operator that looks."""


Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Gradients of `x`, of the weight and of the bias, None where none was asked for."""


Operands = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor | None,
    torch.Tensor,
    torch.Tensor | None,
    torch.Tensor | None,
]
"""`x`, weight, bias, target, weights of classes and of tokens."""


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which losses and gradients of such operands are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def loss_dtype(dtype: torch.dtype, steps: Sequence[str]) -> torch.dtype:
    """Return the type of the loss: the one that the last conversion gave the logits."""
    conversions = [step.dtype for step in parse_steps(steps) if step.dtype is not None]
    return conversions[-1] if conversions else dtype


def chunk_tokens(tokens: int, classes: int, itemsize: int) -> int:
    """Return how many tokens a chunk has: a power of two, or all of them."""
    fitting = max(1, CHUNK_BYTES // max(1, classes * itemsize))
    power = 1 << (fitting.bit_length() - 1)
    return max(1, min(tokens, max(FEWEST_TOKENS, min(MOST_TOKENS, power))))


@torch.no_grad()
def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    form: LossForm,
    wanted: Sequence[bool] = (False, False, False),
    out: Gradients = (None, None, None),
) -> tuple[torch.Tensor, Gradients]:
    """Return the loss of logits `x @ weight.T + bias`, and the gradients for a gradient of one.

    `x` is `[*tokens, features]`, `weight` `[classes, features]`, `target` `[*tokens]`. With
    `token_weight`, of the shape of `target`, the losses are multiplied by it before they are
    summed. `wanted` asks for gradients, in the type of computation; they need a reduction. They are
    written to the tensors in `out`, where given. `TargetError` if a target is no class.
    """
    operands = (x, weight, bias, target, class_weight, token_weight)
    kept = counted_tokens(*operands, form.ignore, form.steps)
    if kept is None:
        return _loss(*operands, form, wanted, out)
    some = _of_tokens(kept, *operands)
    loss, (of_x, *rest) = _loss(*some, form, wanted, (None, *out[1:]))
    if form.reduction == "none":
        loss = _spread(loss, kept, target.shape)
    if of_x is not None:
        of_x = _spread(of_x, kept, x.shape, out[0])
    return loss, (of_x, rest[0], rest[1])


def _of_tokens(
    kept: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
) -> Operands:
    """Return the operands with only some tokens, one after the other."""
    rows = x.reshape(-1, x.shape[-1])[kept]
    weights = None if token_weight is None else token_weight.reshape(-1)[kept]
    return rows, weight, bias, target.reshape(-1)[kept], class_weight, weights


def _spread(
    part: torch.Tensor, kept: torch.Tensor, shape: torch.Size, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return zeros with a part put where it was taken from."""
    whole = part.new_zeros(shape) if out is None or not out.is_contiguous() else out.zero_()
    whole.view(-1, *part.shape[1:])[kept] = part
    return whole if out is None or whole is out else out.copy_(whole)


def _loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    form: LossForm,
    wanted: Sequence[bool],
    out: Gradients,
) -> tuple[torch.Tensor, Gradients]:
    """Look at all tokens."""
    sweep = _Sweep(x, weight, bias, target, class_weight, form)
    losses = torch.empty(sweep.tokens, dtype=sweep.dtype, device=x.device)
    coefficients = sweep.coefficients(token_weight) if any(wanted) else None
    gradients = sweep.run(losses, coefficients, wanted, out)
    if form.reduction == "none":
        loss = losses.reshape(target.shape)
    elif form.reduction == "mean":
        loss = losses.sum() / sweep.total()
    else:
        weights = None if token_weight is None else token_weight.reshape(-1)
        loss = losses.sum() if weights is None else (losses * weights.to(losses.dtype)).sum()
    return loss.to(sweep.loss_dtype), gradients


@torch.no_grad()
def linear_cross_entropy_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    form: LossForm,
    wanted: Sequence[bool],
    out: Gradients = (None, None, None),
) -> Gradients:
    """Return the gradients for the gradient of the loss, computing the logits once more."""
    operands = (x, weight, bias, target, class_weight, token_weight)
    kept = counted_tokens(*operands, form.ignore, form.steps)
    if kept is None:
        return _gradients(grad, *operands, form, wanted, out)
    some = _of_tokens(kept, *operands)
    incoming = grad.reshape(-1)[kept] if form.reduction == "none" else grad
    of_x, *rest = _gradients(incoming, *some, form, wanted, (None, *out[1:]))
    if of_x is not None:
        of_x = _spread(of_x, kept, x.shape, out[0])
    return of_x, rest[0], rest[1]


def _gradients(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    form: LossForm,
    wanted: Sequence[bool],
    out: Gradients,
) -> Gradients:
    """Look at all tokens once more."""
    sweep = _Sweep(x, weight, bias, target, class_weight, form)
    incoming = grad.reshape(-1).to(sweep.dtype)
    coefficients = torch.where(sweep.ignored, 0, sweep.coefficients(token_weight) * incoming)
    return sweep.run(None, coefficients, wanted, out)


class _Sweep:
    """One pass over all tokens: the operands as matrices, and what belongs to each token."""

    def __init__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        form: LossForm,
    ) -> None:
        self.form = form
        self.classes, self.features = weight.shape
        self.dtype = computing_dtype(x.dtype)
        self.operand_dtype = x.dtype
        # Only graphics processors are sure to multiply low precision fast.
        self.product_dtype = x.dtype if x.is_cuda else self.dtype
        self.operands = (x, weight, bias)
        self.x = x.reshape(-1, self.features)
        self.tokens = self.x.shape[0]
        self.weight = weight.to(self.product_dtype)
        self.bias = None if bias is None else bias.to(self.product_dtype)
        self.steps = parse_steps(form.steps)
        self.loss_dtype = loss_dtype(x.dtype, form.steps)
        self.target, self.ignored = _checked_targets(target, self.classes, form.ignore)
        self.class_weight = self.target_weight = None
        if class_weight is not None:
            self.class_weight = class_weight.to(self.dtype)
            of_targets = self.class_weight[self.target]
            self.target_weight = of_targets.masked_fill_(self.ignored, 0)
        self.rows = chunk_tokens(self.tokens, self.classes, self.dtype.itemsize)
        fitting = BLOCK_BYTES // max(1, self.classes * self.dtype.itemsize)
        self.block_rows = self.rows if x.is_cuda else max(1, min(self.rows, fitting))

    def total(self) -> torch.Tensor:
        """Return what a mean divides by: the weight of all targets that count."""
        if self.target_weight is None:
            return (~self.ignored).sum().to(self.dtype)
        return self.target_weight.sum()

    def coefficients(self, token_weight: torch.Tensor | None) -> torch.Tensor:
        """Return the derivative of the reduced loss by the loss of each token."""
        if self.form.reduction == "mean":
            coefficients = self.total().reciprocal().expand(self.tokens)
        elif token_weight is not None:
            coefficients = token_weight.reshape(-1).to(self.dtype)
        else:
            coefficients = torch.ones_like(self.target, dtype=self.dtype)
        return torch.where(self.ignored, 0, coefficients)

    def run(
        self,
        losses: torch.Tensor | None,
        coefficients: torch.Tensor | None,
        wanted: Sequence[bool],
        out: Gradients,
    ) -> Gradients:
        """Write the losses, if there is a vector for them, and the gradients that are wanted."""
        scale = None
        if coefficients is not None and self.product_dtype is torch.float16:
            # Far from what float16 rounds to zero.
            scale = coefficients.abs().amax().clamp_min(torch.finfo(torch.float32).tiny) / 1024
            coefficients = coefficients / scale
        gradients = self._gradients(wanted, out)
        chunk = self.x.new_empty((self.rows, self.classes), dtype=self.dtype)
        scratch = self.x.new_empty((self.block_rows, self.classes), dtype=self.dtype)
        for start in range(0, self.tokens, self.rows):
            part = slice(start, min(start + self.rows, self.tokens))
            x = self.x[part].to(self.product_dtype)
            logits = self._project(x, chunk[: x.shape[0]])
            for first in range(part.start, part.stop, self.block_rows):
                rows = slice(first, min(first + self.block_rows, part.stop))
                block = logits[first - start : rows.stop - start]
                logarithms = scratch[: block.shape[0]]
                kept = transform(block, self.steps, self.operand_dtype)
                torch.ops.aten._log_softmax.out(block, 1, False, out=logarithms)
                if losses is not None:
                    losses[rows] = self._losses(logarithms, rows)
                if coefficients is not None:
                    self._differentiate(logarithms, block, rows, coefficients[rows, None])
                    differentiate(block, self.steps, kept)
            self._multiply_out(logits, x, part, gradients)
        return self._finished(gradients, out, scale)

    def _project(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the logits of a chunk, in the type of computation."""
        low = self.product_dtype is not self.dtype
        logits = torch.empty_like(out, dtype=self.product_dtype) if low else out
        if self.bias is None:
            torch.mm(x, self.weight.t(), out=logits)
        else:
            torch.addmm(self.bias, x, self.weight.t(), out=logits)
        return out.copy_(logits) if low else out

    def _losses(self, logarithms: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return the losses of some tokens, given the logarithms of all probabilities."""
        losses = logarithms.gather(1, self.target[rows, None]).squeeze(1).neg_()
        if self.target_weight is not None:
            losses.mul_(self.target_weight[rows])
        if smoothing := self.form.smoothing:
            if self.class_weight is None:
                everywhere = logarithms.sum(1)
            else:
                everywhere = torch.mv(logarithms, self.class_weight)
            losses.mul_(1 - smoothing).sub_(everywhere, alpha=smoothing / self.classes)
        return losses.masked_fill_(self.ignored[rows], 0)

    def _differentiate(
        self,
        logarithms: torch.Tensor,
        gradient: torch.Tensor,
        rows: slice,
        coefficient: torch.Tensor,
    ) -> None:
        """Write the gradient with respect to the transformed logits of some tokens.

        A token's loss is `-sum(t * log p)` with a target distribution `t`, whose gradient is
        `sum(t) * p - t`; `t` is the same for all classes but one.
        """
        smoothing = self.form.smoothing
        at_target = coefficient * (1 - smoothing)
        if self.target_weight is not None:
            at_target = at_target * self.target_weight[rows, None]
        torch.exp(logarithms, out=gradient)
        if smoothing:
            everywhere = coefficient * (smoothing / self.classes)
            if self.class_weight is None:
                gradient.mul_(at_target + everywhere * self.classes).sub_(everywhere)
            else:
                gradient.mul_(at_target + everywhere * self.class_weight.sum())
                gradient.addcmul_(everywhere, self.class_weight, value=-1)
        else:
            gradient.mul_(at_target)
        gradient.scatter_add_(1, self.target[rows, None], at_target.neg())

    def _multiply_out(
        self, logits: torch.Tensor, x: torch.Tensor, part: slice, gradients: Gradients
    ) -> None:
        """Add the gradients of the operands, given that of the logits of a chunk."""
        of_x, of_weight, of_bias = gradients
        factors = logits.to(self.product_dtype)
        if of_x is not None:
            _multiply(factors, self.weight, of_x[part], add=False)
        if of_weight is not None:
            _multiply(factors.t(), x, of_weight, add=part.start > 0)
        if of_bias is not None:
            of_bias.add_(logits.sum(0))

    def _gradients(self, wanted: Sequence[bool], out: Gradients) -> Gradients:
        """Return memory for the gradients that are wanted, as matrices, and a zero vector."""
        memory: list[torch.Tensor | None] = [None, None, None]
        for index, operand in enumerate(self.operands):
            if operand is None or not wanted[index]:
                continue
            given = out[index]
            if given is None or (index == 0 and not given.is_contiguous()):
                given = torch.empty_like(operand, dtype=self.dtype)
            memory[index] = given if index else given.contiguous().view(-1, self.features)
        of_x, of_weight, of_bias = memory
        if of_bias is not None:
            of_bias.zero_()
        if of_weight is not None and self.tokens == 0:
            of_weight.zero_()
        return of_x, of_weight, of_bias

    def _finished(
        self, gradients: Gradients, out: Gradients, scale: torch.Tensor | None
    ) -> Gradients:
        """Return the gradients in the shapes of the operands, in the memory asked for."""
        finished: list[torch.Tensor | None] = []
        for gradient, operand, given in zip(gradients, self.operands, out, strict=True):
            if gradient is not None and operand is not None:
                if scale is not None:
                    gradient.mul_(scale)
                gradient = gradient.view(operand.shape)
                if given is not None and given.data_ptr() != gradient.data_ptr():
                    gradient = given.copy_(gradient)
            finished.append(gradient)
        of_x, of_weight, of_bias = finished
        return of_x, of_weight, of_bias


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, add: bool) -> None:
    """Write a product, or add it; it is rounded to the type of its factors."""
    if out.dtype is not a.dtype:
        product = torch.mm(a, b)
        out.add_(product) if add else out.copy_(product)
    elif add:
        out.addmm_(a, b)
    else:
        torch.mm(a, b, out=out)


def _checked_targets(
    target: torch.Tensor, classes: int, ignore: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return targets as a vector that is safe to index with, and which of them are ignored."""
    flat = target.reshape(-1).to(torch.int64)
    ignored = torch.zeros_like(flat, dtype=torch.bool) if ignore is None else flat == ignore
    if (
        flat.is_cuda
    ):  # looking would mean to wait; a wrong target fails where it is used, as eager's
        return flat.masked_fill(ignored, 0), ignored
    wrong = ((flat < 0) | (flat >= classes)) & ~ignored
    if bool(wrong.any()):
        first = int(flat[wrong][0])
        if ignore is None:
            raise TargetError(f"index {first} is out of bounds for dimension with size {classes}")
        raise TargetError(f"Target {first} is out of bounds.")
    return flat.masked_fill(ignored, 0), ignored
