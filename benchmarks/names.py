"""The names of the workloads in the order of the tables, without what building them needs."""

from __future__ import annotations

TRAINING = (
    "gpt",
    "gpt-long",
    "llama",
    "bert",
    "vit",
    "resnet",
    "pointwise",
    "vocabulary",
    "tiny",
    "gpt-bf16",
)
INFERENCE = ("t5-encoder", "bert-inference", "llama-decode", "convnext", "tiny-inference")
NAMES = (*TRAINING, *INFERENCE)


def kind_of(name: str) -> str:
    """Return `training` or `inference`."""
    return "training" if name in TRAINING else "inference"
