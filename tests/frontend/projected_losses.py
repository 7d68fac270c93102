"""Ways in which models write the loss of a projection, and near misses."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use
from torch import Tensor, nn

CLASSES, FEATURES = 19, 6

Written = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A loss of `x` `[2, 5, features]`, weight `[classes, features]`, bias, and targets `[2, 5]`."""


def nano_gpt(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), t.view(-1), ignore_index=-1)


def shifted(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b)
    before, after = logits[..., :-1, :].contiguous(), t[..., 1:].contiguous()
    return nn.CrossEntropyLoss()(before.view(-1, CLASSES), after.view(-1))


def padded_labels(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w).float()
    labels = F.pad(t, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    return F.cross_entropy(logits.view(-1, CLASSES), labels, ignore_index=-100, reduction="mean")


def sum_by_items(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w).view(-1, CLASSES).float()
    return F.cross_entropy(logits, t.view(-1), reduction="sum") / 7


def classes_second(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b).transpose(1, 2), t)


def classes_second_permuted(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy((x @ w.t() + b).permute(0, 2, 1), t, label_smoothing=0.1)


def images(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x.unsqueeze(1), w, b).movedim(-1, 1)
    return F.cross_entropy(logits, t.unsqueeze(1))


def smoothed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=3)
    return loss(F.linear(x, w, b).flatten(0, 1), t.flatten())


def log_softmax_nll(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = F.log_softmax((x @ w.T).reshape(-1, CLASSES), dim=1)
    return F.nll_loss(scores, t.reshape(-1), ignore_index=3)


def modules_nll(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = nn.LogSoftmax(-1)(torch.matmul(x, w.mT)).view(-1, CLASSES)
    return nn.NLLLoss(reduction="sum")(scores, t.view(-1))


def nll_of_sequences(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = torch.log_softmax(F.linear(x, w, b).transpose(1, 2), 1)
    return F.nll_loss(scores, t, reduction="none").sum()


def gathered(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = torch.einsum("btd,vd->btv", x, w).log_softmax(-1)
    return -scores.gather(-1, t[..., None]).squeeze(-1).mean()


def gathered_masked(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = F.linear(x, w, b).log_softmax(dim=-1)
    picked = torch.gather(scores, 2, t.unsqueeze(2)).squeeze(2)
    mask = t != 3
    return -(picked * mask).sum() / mask.sum()


def taken_along(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return -torch.log_softmax(x @ w.t(), -1).take_along_dim(t[..., None], dim=-1).mean()


def indexed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = F.log_softmax(F.linear(x, w).view(-1, CLASSES), -1)
    return -scores[torch.arange(scores.shape[0]), t.view(-1)].mean()


def indexed_from_the_end(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = F.log_softmax(F.linear(x, w).view(-1, CLASSES), -1)
    return -scores[torch.arange(t.numel()), t.view(-1) - CLASSES].mean()


def logsumexp(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = x @ w.t()
    picked = logits.gather(-1, t.unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(logits, -1) - picked).mean()


def logsumexp_kept(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b)
    picked = torch.gather(logits, -1, t.unsqueeze(-1))
    return (picked - logits.logsumexp(-1, keepdim=True)).sum().neg() / t.numel()


def capped(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w) / 3.0
    logits = torch.tanh(logits) * 3.0
    return F.cross_entropy(logits.float().view(-1, CLASSES), t.view(-1))


def scaled(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy((0.125 * F.linear(x, w, b)).view(-1, CLASSES), t.view(-1))


def some_classes(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b)[..., : CLASSES - 2]
    return F.cross_entropy(logits.reshape(-1, CLASSES - 2), t.view(-1) % 5)


def some_classes_then_bias(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = (x @ w.t())[..., 2:] + b[2:]
    return F.cross_entropy(logits.reshape(-1, CLASSES - 2), t.view(-1) % 5)


def last_token(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b)[:, -1], t[:, 0])


def one_token(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x[0, 0], w, b), t[0, 0])


def added_product(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(torch.addmm(b, x.view(-1, FEATURES), w.t()), t.view(-1))


def class_weights(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    weight = torch.arange(1.0, 1.0 + CLASSES, dtype=x.dtype)
    logits = F.linear(x, w, b).view(-1, CLASSES)
    return F.cross_entropy(logits, t.view(-1), weight=weight, label_smoothing=0.2)


def target_changed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    goal = t.clone()
    logits = F.linear(x, w, b)
    goal[:, 0] = -100
    return F.cross_entropy(logits.view(-1, CLASSES), goal.view(-1))


def capped_in_place(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w).div_(3.0).tanh_() * 3.0
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1))


def sized(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b)
    batch, tokens, classes = logits.size()
    return F.cross_entropy(logits.view(batch * tokens, classes), t.view(batch * tokens))


def tied(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    hidden = torch.tanh(F.embedding(t, w))
    return F.cross_entropy(F.linear(hidden, w).view(-1, CLASSES), t.view(-1))


def of_each_token(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b).view(-1, CLASSES), t.view(-1), reduction="none")


def of_each_sequence(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return of_each_token(x, w, b, t).view(2, 5).sum(1)


def mean_of_each(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return of_each_token(x, w, b, t).mean()


def masked_mean(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    mask = (t > 3).float()
    return (of_each_token(x, w, b, t).view(2, 5) * mask).sum() / mask.sum()


def log_probabilities(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return torch.gather(F.log_softmax(F.linear(x, w, b), -1), 2, t[..., None])[..., 0]


def two_heads(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return nano_gpt(x, w, b, t) + 0.3 * shifted(x, w, b, t)


def evaluated(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    with torch.no_grad():
        return nano_gpt(x, w, b, t)


WRITTEN: tuple[Written, ...] = (
    *(nano_gpt, shifted, padded_labels, sum_by_items, classes_second, classes_second_permuted),
    *(images, smoothed, log_softmax_nll, modules_nll, nll_of_sequences, gathered),
    *(gathered_masked, taken_along, indexed, indexed_from_the_end, logsumexp, logsumexp_kept),
    *(capped, scaled, some_classes, some_classes_then_bias, last_token, one_token),
    *(added_product, class_weights, tied, of_each_token, of_each_sequence, mean_of_each),
    *(masked_mean, log_probabilities, two_heads, evaluated, target_changed, capped_in_place),
    sized,
)


def probabilities(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    shares = torch.softmax(torch.cos(F.linear(x, w)), -1).view(-1, CLASSES)
    return F.cross_entropy(F.linear(x, w, b).view(-1, CLASSES), shares)


def logits_returned(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, w, b)
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1)), logits


def z_loss(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b).view(-1, CLASSES)
    return F.cross_entropy(logits, t.view(-1)) + 1e-2 * logits.logsumexp(-1).square().mean()


def accuracy(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, w, b).view(-1, CLASSES)
    return F.cross_entropy(logits, t.view(-1)), (logits.argmax(-1) == t.view(-1)).sum()


def activated(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b).relu().view(-1, CLASSES), t.view(-1))


def learned_scale(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy((F.linear(x, w) * b.sum()).view(-1, CLASSES), t.view(-1))


def logits_changed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b)
    logits[..., -2:] = -1e4
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1) % 5)


def operand_changed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = x * 2
        logits = F.linear(hidden, w, b)
        hidden.view(-1).mul_(3)
        loss = F.cross_entropy(logits.view(-1, CLASSES), t.view(-1))
    return loss + hidden.sum()


def no_gradient_for_logits(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    with torch.no_grad():
        logits = F.linear(x, w)
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1)) * b.sum()


def softmax_over_tokens(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = F.log_softmax(F.linear(x, w, b), dim=1)
    return F.nll_loss(scores.view(-1, CLASSES), t.view(-1))


def classes_mixed_with_tokens(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x, w, b).transpose(1, 2).reshape(2, 5, CLASSES)
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1))


def several_classes(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    scores = F.log_softmax(F.linear(x, w, b), -1)
    return -scores.gather(-1, torch.stack([t, t // 2], -1)).mean()


def one_weight_for_each_batch(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = torch.bmm(x, torch.stack([w.t(), w.t().cos()]))
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1))


MISSES: tuple[tuple[Callable[..., object], str], ...] = (
    (probabilities, "probabilities"),
    (logits_returned, "returned"),
    (z_loss, "used by"),
    (accuracy, "used by"),
    (activated, "no linear projection"),
    (learned_scale, "no plain number"),
    (logits_changed, "used by"),
    (operand_changed, "writes to memory"),
    (no_gradient_for_logits, "between the projection and the loss"),
    (softmax_over_tokens, "not taken over classes"),
    (classes_mixed_with_tokens, "mixes classes with tokens"),
    (several_classes, ""),
    (one_weight_for_each_batch, "no linear projection"),
)
"""Functions whose logits must stay, with a part of the reason; the empty one for no remark."""
