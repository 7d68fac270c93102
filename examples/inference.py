"""Generate text with a tiny Llama of Hugging Face transformers, compiled by Lynx.

    python examples/inference.py

The weights are random (nothing is downloaded), so the words mean nothing; what counts is that both
ways of running pick the same tokens. Prompts of several lengths share one compiled program.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM


def make_model(layers: int, width: int) -> LlamaForCausalLM:
    """Build a Llama that reads bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        initializer_range=0.2,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def continue_text(run: Callable[..., Any], prompt: bytes, count: int) -> Tensor:
    """Append the most likely byte, again and again."""
    tokens = torch.tensor([list(prompt)])
    for _ in range(count):
        following = run(input_ids=tokens).logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the tokens that eager and Lynx choose."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=12)
    options = parser.parse_args(arguments)
    model = make_model(options.layers, options.width)
    compiled = torch.compile(model, backend="lynx", dynamic=True)
    for prompt in (b"def main():", b"import os", b"class Graph:\n    def"):
        results, seconds = [], []
        for run in (model, compiled):
            start = time.perf_counter()
            results.append(continue_text(run, prompt, options.tokens))
            seconds.append(time.perf_counter() - start)
        same = "the same tokens" if torch.equal(*results) else "DIFFERENT TOKENS"
        print(f"{prompt!r:<30} eager {seconds[0]:.2f} s, lynx {seconds[1]:.2f} s, {same}")


if __name__ == "__main__":
    main()
