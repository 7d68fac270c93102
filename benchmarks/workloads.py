"""The models that the suite times, in two sizes: seeded weights and inputs, one tensor out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """A model with inputs. `make(is_quick)` builds both; quick ones are tiny and only for tests.

    A training step runs forward to a loss and backward to the gradients of all parameters. The
    module takes the inputs by position and returns one tensor, a loss if it `trains`.
    """

    name: str
    trains: bool
    make: Callable[[bool], tuple[nn.Module, Inputs]]
    description: str

    def build(self, is_quick: bool = False) -> tuple[nn.Module, Inputs]:
        """Return the module and its inputs, the same ones in every process."""
        torch.manual_seed(0)
        module, inputs = self.make(is_quick)
        return module.train(self.trains), inputs


WORKLOADS: dict[str, Workload] = {}


def _workload(
    name: str, trains: bool
) -> Callable[[Callable[[bool], tuple[nn.Module, Inputs]]], Any]:
    def enter(make: Callable[[bool], tuple[nn.Module, Inputs]]) -> Any:
        WORKLOADS[name] = Workload(name, trains, make, (make.__doc__ or "").splitlines()[0])
        return make

    return enter


class Attention(nn.Module):
    """Causal self-attention, written out."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.register_buffer("visible", torch.ones(context, context, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        """Mix each token with those before it."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(split).transpose(1, 2) for part in self.project_in(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / split[-1] ** 0.5
        scores = scores.masked_fill(~self.visible[:length, :length], float("-inf"))
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, width)
        out: Tensor = self.project_out(mixed)
        return out


class Block(nn.Module):
    """Attention, then a two-layer network, each added to what came in."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, context)
        self.norm_network = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        x = x + self.attention(self.norm_attention(x))
        out: Tensor = x + self.network(self.norm_network(x))
        return out


class GPT(nn.Module):
    """Predict the next token; the loss given the right answers."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _pair(vocabulary: int, batch: int, length: int) -> Inputs:
    drawn = torch.randint(3, vocabulary, (batch, length + 1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


@_workload("gpt", trains=True)
def gpt(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """GPT of 4 layers of 256, 2 x 128 tokens, attention written out."""
    if is_quick:
        return GPT(64, 1, 32, 2, 16), _pair(64, 2, 16)
    return GPT(2048, 4, 256, 4, 128), _pair(2048, 2, 128)


@_workload("gpt-long", trains=True)
def gpt_long(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """GPT of 2 layers of 128, 1 x 1024 tokens, attention written out."""
    if is_quick:
        return GPT(64, 1, 32, 2, 64), _pair(64, 1, 64)
    return GPT(1024, 2, 128, 2, 1024), _pair(1024, 1, 1024)


@_workload("gpt-bf16", trains=True)
def gpt_bf16(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """GPT of 4 layers of 192 in bfloat16, 1 x 128 tokens."""
    if is_quick:
        return GPT(64, 1, 32, 2, 16).bfloat16(), _pair(64, 2, 16)
    return GPT(1024, 4, 192, 3, 128).bfloat16(), _pair(1024, 1, 128)


class Wrapped(nn.Module):
    """A model of Hugging Face transformers whose arguments have been given names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], result: str) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.result = result

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return one field of the result."""
        named = dict(zip(self.names, inputs, strict=True))
        result: Tensor = self.model(**named)[self.result]
        return result


def _transformer(kind: str, config: str, result: str, **fields: Any) -> Callable[..., nn.Module]:
    def make(*names: str) -> nn.Module:
        configuration = getattr(transformers, config)(**fields)
        return Wrapped(getattr(transformers, kind)(configuration), names, result)

    return make


def _llama(is_quick: bool) -> dict[str, Any]:
    sizes = (32, 48, 1, 2, 1) if is_quick else (256, 688, 4, 8, 4)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers")
    heads = ("num_attention_heads", "num_key_value_heads")
    fields = dict(zip((*names, *heads), sizes, strict=True))
    words = {"vocab_size": 96 if is_quick else 4096, "pad_token_id": 0}
    return {**fields, **words, "max_position_embeddings": 512}


@_workload("llama", trains=True)
def llama(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face Llama of 4 layers of 256, grouped heads, 2 x 128 tokens."""
    model = _transformer(
        "LlamaForCausalLM", "LlamaConfig", "loss", use_cache=False, **_llama(is_quick)
    )
    batch, length, vocabulary = (2, 16, 96) if is_quick else (2, 128, 4096)
    ids = torch.randint(3, vocabulary, (batch, length))
    return model("input_ids", "labels"), (ids, ids.clone())


def _bert(is_quick: bool) -> dict[str, Any]:
    sizes = (32, 64, 1, 2) if is_quick else (256, 1024, 4, 4)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    words = {"vocab_size": 96 if is_quick else 4096, "pad_token_id": 0}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {**dict(zip(names, sizes, strict=True)), **words, **dropout}


def _masked_tokens(batch: int, length: int, vocabulary: int) -> Inputs:
    ids = torch.randint(3, vocabulary, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length * 3 // 4 :] = 0
    return ids, mask


@_workload("bert", trains=True)
def bert(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face BERT of 4 layers of 256 with masked tokens to predict, 4 x 128 tokens."""
    model = _transformer("BertForMaskedLM", "BertConfig", "loss", **_bert(is_quick))
    ids, mask = _masked_tokens(2, 16, 96) if is_quick else _masked_tokens(4, 128, 4096)
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    labels[0, 0] = ids[0, 0]
    return model("input_ids", "attention_mask", "labels"), (ids, mask, labels)


@_workload("vit", trains=True)
def vit(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face ViT of 6 layers of 192, 8 images of 96 x 96 in patches of 16."""
    size, width, layers, batch = (16, 32, 1, 2) if is_quick else (96, 192, 6, 8)
    model = _transformer(
        "ViTForImageClassification", "ViTConfig", "loss", image_size=size,
        patch_size=8 if is_quick else 16, hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=layers, num_attention_heads=2 if is_quick else 3, num_labels=100,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    images = torch.randn(batch, 3, size, size)
    return model("pixel_values", "labels"), (images, torch.randint(0, 100, (batch,)))


@_workload("resnet", trains=True)
def resnet(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face ResNet-18 with batch norm in training, 4 images of 96 x 96."""
    widths, depths = ([8, 16], [1, 1]) if is_quick else ([64, 128, 256, 512], [2, 2, 2, 2])
    batch, size = (2, 32) if is_quick else (4, 96)
    model = _transformer(
        "ResNetForImageClassification", "ResNetConfig", "loss", embedding_size=widths[0],
        hidden_sizes=widths, depths=depths, layer_type="basic", num_labels=100,
    )  # fmt: skip
    images = torch.randn(batch, 3, size, size)
    return model("pixel_values", "labels"), (images, torch.randint(0, 100, (batch,)))


class Pointwise(nn.Module):
    """A chain that does little with much memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of a gated polynomial."""
        y = x * self.scale + self.shift
        gated = torch.sigmoid(y) * torch.tanh(y * y + 1) + (y - 2).exp().clamp(max=4)
        return (gated * functional.silu(y) - x.abs().sqrt()).square().mean()


@_workload("pointwise", trains=True)
def pointwise(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Chain of 16 elementwise operations on 1024 x 1024 numbers, with its mean."""
    rows, width = (16, 32) if is_quick else (1024, 1024)
    return Pointwise(width), (torch.randn(rows, width),)


class Vocabulary(nn.Module):
    """The end of a language model: a norm, the projection to words, the loss."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        logits = self.head(self.norm(x + self.project(x)))
        return functional.cross_entropy(logits, targets, ignore_index=0)


@_workload("vocabulary", trains=True)
def vocabulary(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Projection of 512 tokens of width 192 to 32768 words, and cross-entropy."""
    rows, width, words = (8, 16, 64) if is_quick else (512, 192, 32768)
    targets = torch.randint(0, words, (rows,))
    targets[: rows // 8] = 0
    return Vocabulary(width, words), (torch.randn(rows, width), targets)


class TinyLayer(nn.Module):
    """A residual layer so small that calling it costs more than computing it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the input and what the layer makes of it."""
        out: Tensor = x + self.narrow(functional.gelu(self.wide(self.norm(x))))
        return out


class Tiny(nn.Module):
    """Many tiny layers, then their mean square."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(TinyLayer(width) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss in training, the features otherwise."""
        features: Tensor = self.layers(x)
        return features.square().mean() if self.training else features


def _tiny(is_quick: bool) -> tuple[nn.Module, Inputs]:
    layers, width, rows = (3, 8, 4) if is_quick else (48, 32, 16)
    return Tiny(layers, width), (torch.randn(rows, width),)


@_workload("tiny", trains=True)
def tiny(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """48 residual layers of width 32 on 16 rows: the host is the limit."""
    return _tiny(is_quick)


@_workload("t5-encoder", trains=False)
def t5_encoder(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face T5 encoder of 4 layers of 256, 2 x 256 tokens."""
    width, inner, layers, heads = (32, 64, 1, 2) if is_quick else (256, 1024, 4, 4)
    words = 96 if is_quick else 4096
    model = _transformer(
        "T5EncoderModel", "T5Config", "last_hidden_state", d_model=width, d_ff=inner,
        d_kv=width // heads, num_layers=layers, num_heads=heads, vocab_size=words,
        dropout_rate=0.0,
    )  # fmt: skip
    batch, length = (2, 16) if is_quick else (2, 256)
    return model("input_ids", "attention_mask"), _masked_tokens(batch, length, words)


@_workload("bert-inference", trains=False)
def bert_inference(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face BERT of 4 layers of 256, 4 x 128 tokens."""
    model = _transformer("BertModel", "BertConfig", "last_hidden_state", **_bert(is_quick))
    inputs = _masked_tokens(2, 16, 96) if is_quick else _masked_tokens(4, 128, 4096)
    return model("input_ids", "attention_mask"), inputs


class Decode(nn.Module):
    """One step of generation, with the keys and values of all tokens before it in a cache."""

    def __init__(self, is_quick: bool, batch: int, length: int) -> None:
        super().__init__()
        config = transformers.LlamaConfig(**_llama(is_quick))
        self.model = transformers.LlamaForCausalLM(config)
        self.cache = transformers.StaticCache(config, max_cache_len=2 * length)
        known = inspect.signature(self.model.forward).parameters
        self.keyword = "cache" if "cache" in known else "past_key_values"
        width = config.hidden_size // config.num_attention_heads
        shape = (batch, config.num_key_value_heads, width, torch.float32, torch.device("cpu"))
        self.cache.early_initialization(*shape)
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()

    def forward(self, ids: Tensor, place: Tensor) -> Tensor:
        """Return the logits of the next token."""
        for layer in self.cache.layers:
            if hasattr(layer, "cumulative_length"):  # counts on from step to step: stay in place
                layer.cumulative_length.copy_(place[0])
        places = {"position_ids": place[None], "cache_position": place}
        given = {self.keyword: self.cache, "use_cache": True, **places}
        result: Tensor = self.model(ids, **given).logits
        return result


@_workload("llama-decode", trains=False)
def llama_decode(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face Llama, one token for each of 4 texts of 256 tokens in a static cache."""
    batch, length = (2, 8) if is_quick else (4, 256)
    module = Decode(is_quick, batch, length)
    ids = torch.randint(3, 96 if is_quick else 4096, (batch, 1))
    return module, (ids, torch.tensor([length]))


@_workload("convnext", trains=False)
def convnext(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """Hugging Face ConvNeXt of 10 blocks, 2 images of 128 x 128."""
    widths, depths = ([8, 16], [1, 1]) if is_quick else ([48, 96, 192, 384], [2, 2, 4, 2])
    batch, size = (2, 32) if is_quick else (2, 128)
    model = _transformer(
        "ConvNextForImageClassification", "ConvNextConfig", "logits", hidden_sizes=widths,
        depths=depths, num_stages=len(widths), num_labels=100,
    )  # fmt: skip
    return model("pixel_values"), (torch.randn(batch, 3, size, size),)


@_workload("tiny-inference", trains=False)
def tiny_inference(is_quick: bool) -> tuple[nn.Module, Inputs]:
    """48 residual layers of width 32 on 16 rows: the host is the limit."""
    return _tiny(is_quick)
