"""Models of Hugging Face families at real widths, but with few layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

BATCH, LENGTH = 2, 128
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Wide:
    """A family with its usual widths: what its config changes, its task, inputs, and type."""

    config: Inputs
    task: str
    inputs: Callable[[Any], Inputs]
    dtype: torch.dtype = torch.float32
    model_type: str = ""

    def build(self, name: str) -> tuple[PreTrainedModel, Inputs]:
        """Return a model in training mode, and inputs for it."""
        config = AutoConfig.for_model(self.model_type or name, **self.config)
        torch.manual_seed(0)
        model: PreTrainedModel = getattr(transformers, self.task).from_config(config)
        return model.to(self.dtype).train(), self.inputs(config)


def tokens(config: Any) -> Inputs:
    """Draw tokens and what to predict, without a cache of keys and values."""
    ids = torch.randint(3, config.vocab_size, (BATCH, LENGTH))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.roll(1, 1)}
    return {**given, "use_cache": False} if hasattr(config, "use_cache") else given


def pairs(config: Any) -> Inputs:
    """Draw tokens to read and to write."""
    ids = torch.randint(3, config.vocab_size, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids[:, ::2], "use_cache": False}


def images(config: Any) -> Inputs:
    """Draw images with a class for each."""
    return {"pixel_values": torch.randn(BATCH, 3, 224, 224), "labels": torch.tensor([0, 1])}


LLAMA: Inputs = {
    "num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 4096,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
}  # fmt: skip
CAUSAL, MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
CLASSES = "AutoModelForImageClassification"
BF16 = torch.bfloat16

WIDE: dict[str, Wide] = {
    "gpt2": Wide({"n_layer": 1}, CAUSAL, tokens),
    "llama": Wide(LLAMA, CAUSAL, tokens, BF16),
    "resnet": Wide({"depths": [1, 1, 1, 1]}, CLASSES, images),
    "bert": Wide({"num_hidden_layers": 1}, MASKED, tokens),
    "convnext": Wide({"depths": [1, 1, 1, 1]}, CLASSES, images),
    "gemma2": Wide({**LLAMA, "sliding_window": 64}, CAUSAL, tokens, BF16),
    "mixtral": Wide({**LLAMA, "num_local_experts": 4}, CAUSAL, tokens, BF16),
    "modernbert": Wide({"num_hidden_layers": 2}, MASKED, tokens),
    "qwen3": Wide(LLAMA, CAUSAL, tokens, BF16),
    "swin": Wide({"depths": [1, 1, 1, 1]}, CLASSES, images),
    "t5": Wide({"num_layers": 1, "decoder_start_token_id": 0}, "AutoModelForSeq2SeqLM", pairs),
    "vit": Wide({"num_hidden_layers": 1}, CLASSES, images),
}
