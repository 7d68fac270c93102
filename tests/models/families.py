"""Tiny configurations of many model families of Hugging Face transformers, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

VOCABULARY = 96
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One model family: its config, the class of models for its task, and how to make inputs.

    `inputs(batch, length)` draws from the global generator; models of images ignore the length.
    `cached` is whether the model keeps keys and values of earlier tokens if asked.
    """

    config: Inputs
    task: str
    inputs: Callable[[int, int], Inputs]
    cached: bool = False
    model_type: str = ""
    lengths: tuple[int, int] = (12, 17)


def build(name: str, attention: str | None = None, dropout: float = 0.0) -> PreTrainedModel:
    """Build a family's model with every kind of dropout set and no parameter at a special value."""
    family = FAMILIES[name]
    config = AutoConfig.for_model(family.model_type or name, **family.config)
    _set_dropout(config, dropout)
    keywords = {} if attention is None else {"attn_implementation": attention}
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, family.task).from_config(config, **keywords)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.float()


def _set_dropout(config: PretrainedConfig, probability: float) -> None:
    for key, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            _set_dropout(value, probability)
        elif "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
            drops_layers = "path" in key or "layer" in key
            setattr(config, key, type(value)(0 if drops_layers else probability))


def tokens(batch: int, length: int) -> Inputs:
    """Draw tokens, mask the end of the last row, and ask for a prediction of each token."""
    ids = torch.randint(3, VOCABULARY, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def unmasked_tokens(batch: int, length: int) -> Inputs:
    """Draw tokens for models that take no mask."""
    ids = torch.randint(3, VOCABULARY, (batch, length))
    return {"input_ids": ids, "labels": ids}


def sequence_pairs(batch: int, length: int) -> Inputs:
    """Draw tokens to read, and half as many to write."""
    read = tokens(batch, length)
    return {**read, "labels": torch.randint(3, VOCABULARY, (batch, length // 2))}


def images(size: int) -> Callable[[int, int], Inputs]:
    """Draw square images with a class for each."""

    def draw(batch: int, length: int) -> Inputs:
        labels = torch.randint(0, 5, (batch,))
        return {"pixel_values": torch.randn(batch, 3, size, size), "labels": labels}

    return draw


def segmented_images(batch: int, length: int) -> Inputs:
    labels = torch.randint(0, 5, (batch, 32, 32))
    return {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": labels}


def captioned_images(batch: int, length: int) -> Inputs:
    text = tokens(batch, length)
    del text["labels"]
    text["input_ids"][:, -1] = VOCABULARY - 1  # the end of the text, which clip looks for
    return {**text, "pixel_values": torch.randn(batch, 3, 16, 16), "return_loss": True}


def spectrograms(batch: int, length: int) -> Inputs:
    labels = torch.randint(3, VOCABULARY, (batch, length))
    return {"input_features": torch.randn(batch, 8, 32), "labels": labels}


def waveforms(batch: int, length: int) -> Inputs:
    return {
        "input_values": torch.randn(batch, 60 * length),
        "labels": torch.randint(1, 9, (batch, 4)),
    }


WORDS: Inputs = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA: Inputs = {
    **WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
MANY_HEADS: Inputs = {**LLAMA, "num_key_value_heads": 4}
BERT: Inputs = {
    **WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GPT: Inputs = {**WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48}
EXPERTS: Inputs = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
VIT: Inputs = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_labels": 5,
}
WINDOWS: Inputs = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 5,
}
SEQ2SEQ: Inputs = {
    **WORDS,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5: Inputs = {
    **WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
CLIP: Inputs = {
    "text_config": {
        **BERT,
        "hidden_size": 32,
        "eos_token_id": VOCABULARY - 1,
        "projection_dim": 24,
    },
    "vision_config": {**VIT, "projection_dim": 24},
    "projection_dim": 24,
}
WHISPER: Inputs = {
    **SEQ2SEQ,
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "max_target_positions": 32,
    "begin_suppress_tokens": None,
    "suppress_tokens": None,
}
WAV2VEC2: Inputs = {
    **BERT,
    "vocab_size": 12,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}
MAMBA: Inputs = {**WORDS, "hidden_size": 24, "state_size": 4, "num_hidden_layers": 2}


def causal(config: Inputs, **keywords: Any) -> Family:
    """Describe a language model that predicts the next token."""
    return Family(config, "AutoModelForCausalLM", tokens, cached=True, **keywords)


def masked(config: Inputs, **keywords: Any) -> Family:
    """Describe an encoder that fills in tokens."""
    return Family(config, "AutoModelForMaskedLM", tokens, **keywords)


def classifier(config: Inputs, size: int = 16, **keywords: Any) -> Family:
    """Describe an image classifier."""
    return Family(config, "AutoModelForImageClassification", images(size), **keywords)


def translator(config: Inputs, **keywords: Any) -> Family:
    """Describe an encoder with a decoder."""
    return Family(config, "AutoModelForSeq2SeqLM", sequence_pairs, cached=True, **keywords)


FAMILIES: dict[str, Family] = {
    "albert": masked({**BERT, "embedding_size": 16}),
    "bart": translator(SEQ2SEQ),
    "bert": masked(BERT),
    "bloom": causal({**WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "clip": Family(CLIP, "AutoModel", captioned_images),
    "cohere": causal(LLAMA),
    "convnext": classifier(
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 5}
    ),
    "deberta-v2": masked(
        {**BERT, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
    ),
    "deit": classifier({**VIT, "architectures": ["DeiTForImageClassification"]}),
    "distilbert": masked(
        {
            **WORDS,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 64,
        }
    ),
    "electra": masked({**BERT, "embedding_size": 16}),
    "falcon": causal(
        {**WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    ),
    "gemma": causal(LLAMA),
    "gemma2": causal({**LLAMA, "sliding_window": 8, "query_pre_attn_scalar": 8}),
    "gemma3_text": causal({**LLAMA, "sliding_window": 8, "query_pre_attn_scalar": 8}),
    "glm": causal({**LLAMA, "partial_rotary_factor": 0.5}),
    "gpt2": causal(GPT),
    "gpt_bigcode": causal(GPT),
    "gpt_neo": causal(
        {
            **WORDS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
        }
    ),
    "gpt_neox": causal(BERT),
    "gpt_oss": causal({**LLAMA, **EXPERTS, "sliding_window": 8}),
    "gptj": causal({**GPT, "rotary_dim": 4}),
    "granite": causal(LLAMA),
    "llama": causal(LLAMA),
    "mamba": Family(MAMBA, "AutoModelForCausalLM", unmasked_tokens, cached=True),
    "mistral": causal({**LLAMA, "sliding_window": 8}),
    "mixtral": causal({**LLAMA, **EXPERTS}),
    "mobilenet_v2": classifier(
        {"depth_multiplier": 0.25, "image_size": 32, "num_labels": 5, "last_layer_size": 32},
        size=32,
    ),
    "modernbert": masked({**BERT, "local_attention": 8, "global_attn_every_n_layers": 2}),
    "mpt": causal({**WORDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "olmo2": causal(LLAMA),
    "opt": causal(
        {
            **BERT,
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "do_layer_norm_before": True,
        }
    ),
    "phi": causal(MANY_HEADS),
    "phi3": causal(LLAMA),
    "qwen2": causal(LLAMA),
    "qwen2_moe": causal(
        {
            **LLAMA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
            "output_router_logits": True,
        }
    ),
    "qwen3": causal(LLAMA),
    "resnet": classifier(
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "layer_type": "basic",
            "num_labels": 5,
        }
    ),
    "roberta": masked(BERT),
    "segformer": Family(
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
            "num_labels": 5,
        },
        "AutoModelForSemanticSegmentation",
        segmented_images,
    ),
    "stablelm": causal(LLAMA),
    "starcoder2": causal(LLAMA),
    "swin": classifier(WINDOWS),
    "t5": translator(T5),
    "vit": classifier(VIT),
    "wav2vec2": Family(WAV2VEC2, "AutoModelForCTC", waveforms),
    "whisper": Family(WHISPER, "AutoModelForSpeechSeq2Seq", spectrograms, cached=True),
}
