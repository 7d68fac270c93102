"""One compile serves all sizes, those of 1 included, of a model that is told of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

SIZES = ((4, 33), (2, 512), (64, 5), (2, 1), (3, 2), (17, 1), (64, 64), (2, 511))


class Block(nn.Module):
    """A causal transformer block with hand-written attention, and a loss."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(100, width)
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        batch, length, width = x.shape
        projected = self.projection(self.norm(x))
        split = projected.view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        x = x + self.output((weights @ v).transpose(1, 2).reshape(batch, length, width))
        logits = x + self.mlp(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten() % width)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_batches_of_2_to_64_and_sequences_of_1_to_512() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Block()
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(module)
        lookup = torch._dynamo.backends.registry.lookup_backend("lynx")
        return lookup(module, inputs, options={"strict": True})

    compiled = torch.compile(model, backend=backend)
    for batch, length in SIZES:
        tokens = torch.randint(0, 100, (batch, length))
        torch._dynamo.mark_dynamic(tokens, 0)
        # Dynamo compiles anew for a size of 1 unless it may know nothing of it.
        torch._dynamo.decorators.mark_unbacked(tokens, 1)
        loss = compiled(tokens)
        given = gradients(model, loss)
        expected_loss = model(tokens)
        expected = gradients(model, expected_loss)
        torch.testing.assert_close(loss, expected_loss)
        for a, b in zip(given, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
