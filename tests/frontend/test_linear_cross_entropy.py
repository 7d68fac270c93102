"""Models whose loss is fused with the projection before it, compiled end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import lynx
from lynx.ir.ops import LinearCrossEntropy, LinearCrossEntropyBackward
from lynx.ir.types import TensorType
from lynx.records import RECORDS
from tests.frontend import projected_losses as losses
from tests.frontend.projected_losses import Written
from tests.frontend.test_recognise_loss import inputs

ALWAYS = {"strict": True, "fused_loss_bytes": 0}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="lynx", options=ALWAYS, **kwargs)


def fused() -> list[LinearCrossEntropy | LinearCrossEntropyBackward]:
    """Return the fused ops of all graphs compiled since the last reset."""
    return [
        op
        for record in RECORDS.graphs
        if record.imported is not None
        for op in record.imported.ops
        if isinstance(op, LinearCrossEntropy | LinearCrossEntropyBackward)
    ]


def compare(
    function: Callable[..., Any], *given: Any, sources: list[Tensor], **kwargs: Any
) -> Callable[..., Any]:
    """Compare loss and gradients with eager, the gradients of two backward runs; return ours."""
    fast = compiled(function, **kwargs)
    results = []
    for run in (fast, function):
        loss = run(*given)
        upstream = torch.arange(1.0, 1.0 + loss.numel()).view(loss.shape)
        gradients = [
            torch.autograd.grad(loss, sources, upstream * 2, retain_graph=again, allow_unused=True)
            for again in (True, False)
        ]
        results.append((loss.detach(), gradients))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    return fast


@pytest.mark.parametrize(
    "function",
    [
        *(losses.shifted, losses.classes_second_permuted, losses.gathered_masked, losses.capped),
        *(losses.logsumexp, losses.of_each_sequence, losses.some_classes, losses.tied),
    ],
    ids=lambda f: f.__name__,
)
def test_functions(function: Written) -> None:
    given = inputs()
    compare(function, *given, sources=list(given[:3]))
    assert len(fused()) == (2 if function is losses.of_each_sequence else 1)
    assert not lynx.records.RECORDS.graphs[0].fallback


class Nano(nn.Module):
    """Embeds tokens, and gives only the loss; the head shares the embedding's weight."""

    def __init__(self, classes: int = 64, width: int = 16, tie: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, classes, bias=not tie)
        if tie:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.embedding(tokens)))
        logits = self.head(hidden)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def tokens(batch: int = 2, length: int = 6, classes: int = 64) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, classes, (2, batch, length))
    targets = drawn[1].clone()
    targets[:, -1] = -1
    return drawn[0].clone(), targets


@pytest.mark.parametrize("tie", [True, False])
def test_module(tie: bool) -> None:
    model = Nano(tie=tie)
    compare(model, *tokens(), sources=list(model.parameters()))
    (op,) = fused()
    assert isinstance(op, LinearCrossEntropy)
    assert op.gradients == (("x", "weight") if tie else ("x", "weight", "bias"))


def test_frozen_head() -> None:
    model = Nano(tie=False)
    for parameter in model.head.parameters():
        parameter.requires_grad_(False)
    sources = [p for p in model.parameters() if p.requires_grad]
    compare(model, *tokens(), sources=sources)
    (op,) = fused()
    assert isinstance(op, LinearCrossEntropy)
    assert op.gradients == ("x",)


def test_other_sizes_need_no_new_graph() -> None:
    model = Nano(tie=False)
    fast = compare(model, *tokens(), sources=list(model.parameters()), dynamic=True)
    count = len(RECORDS.graphs)
    for batch, length in ((3, 7), (5, 2), (1, 9)):
        given = tokens(batch, length)
        torch.testing.assert_close(fast(*given), model(*given))
    assert len(RECORDS.graphs) <= count + 2  # a batch of one may be a case of its own
    assert all(isinstance(op, LinearCrossEntropy) for op in fused())


def test_evaluation_computes_no_gradients() -> None:
    model = Nano()
    with torch.no_grad():
        given = tokens()
        torch.testing.assert_close(compiled(model)(*given), model(*given))
    (op,) = fused()
    assert isinstance(op, LinearCrossEntropy)
    assert op.gradients == ()


def test_hugging_face() -> None:
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 64, (2, 8))
    sources = list(model.parameters())
    compare(lambda i: model(input_ids=i, labels=i).loss, ids, sources=sources)
    assert len(fused()) == 1


def test_hugging_face_keeps_logits_that_it_returns() -> None:
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 64, (2, 8))
    result = compiled(model)(input_ids=ids, labels=ids)
    torch.testing.assert_close(result.logits, model(input_ids=ids).logits)
    assert fused() == []
    said = [remark.message for remark in RECORDS.graphs[0].remarks]
    assert any("returned" in message for message in said)


def test_low_precision_model() -> None:
    model = Nano().bfloat16()
    given = tokens()
    loss = compiled(model)(*given)
    loss.backward()
    ours = model.embedding.weight.grad
    assert ours is not None
    model.zero_grad()
    precise = Nano().double()
    precise.load_state_dict(model.state_dict())
    precise(*given).backward()
    model(*given).backward()
    exact, theirs = precise.embedding.weight.grad, model.embedding.weight.grad
    assert exact is not None
    assert theirs is not None
    assert ours.dtype is torch.bfloat16
    error = (ours - exact).abs().max()
    assert error <= 1.2 * (theirs - exact).abs().max() + 1e-3 * exact.abs().max()
    assert len(fused()) == 1


def test_all_targets_ignored() -> None:
    model = Nano()
    given, targets = tokens()
    fast = compiled(model)
    loss = fast(given, torch.full_like(targets, -1))
    assert torch.isnan(loss)
    assert not torch.isnan(fast(given, targets))


def test_target_out_of_range() -> None:
    model = Nano()
    given, targets = tokens()
    fast = compiled(model)
    fast(given, targets)
    targets[0, 0] = 64
    with pytest.raises(IndexError, match="Target 64 is out of bounds"):
        fast(given, targets)


def test_no_value_has_the_size_of_the_logits() -> None:
    model = Nano(classes=4096, width=8)
    given = tokens(batch=4, length=128, classes=4096)
    torch.compile(model, backend="lynx", options={"strict": True})(*given).backward()
    assert len(fused()) == 1
    for record in RECORDS.graphs:
        for op in record.program.ops:
            for value in op.op.results if hasattr(op, "op") else op.results:
                if isinstance(value.type, TensorType):
                    assert value.type.shape.count(4096) * value.type.shape.count(512) == 0


def test_small_losses_are_left_by_default() -> None:
    model = Nano()
    torch.compile(model, backend="lynx", options={"strict": True})(*tokens())
    assert fused() == []


def test_explain_says_what_was_fused() -> None:
    model = Nano(classes=4096, width=8)
    told = str(lynx.explain(model, *tokens(batch=4, length=128, classes=4096)))
    assert "linear_cross_entropy: fused: 8.0 MiB of logits are never held" in told
    assert "lynx.linear_cross_entropy" not in told  # it is no operator left to torch


def test_functional_gradients_of_a_compiled_function() -> None:
    x, w, b, t = (item.detach() for item in inputs())
    gradient = torch.func.grad(losses.shifted, argnums=(0, 1, 2))
    torch.testing.assert_close(compiled(gradient)(x, w, b, t), gradient(x, w, b, t))


def test_vmap_over_a_compiled_function() -> None:
    x, w, b, t = (item.detach() for item in inputs())
    several = torch.stack([x, 2 * x])
    over = {"in_dims": (0, None, None, None)}
    ours = torch.func.vmap(compiled(losses.nano_gpt), **over)(several, w, b, t)
    torch.testing.assert_close(ours, torch.func.vmap(losses.nano_gpt, **over)(several, w, b, t))
