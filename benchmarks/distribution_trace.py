"""Trace a Llama 3 of any depth with fake tensors, and keep its graphs as text.

    python -m benchmarks.distribution_trace --size 70B /tmp/llama-70B.lynx

No memory is taken for parameters, but many layers take minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from benchmarks.distribution_sizes import SIZES, Size, Traced, write
from lynx.compat import aot_autograd, boxed
from lynx.decompositions import decompositions
from lynx.importer import import_graph
from lynx.normalize import normalize
from lynx.recognise import recognise

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LlamaConfig, LlamaForCausalLM


class Loss(torch.nn.Module):
    """The model with its loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens."""
        logits = self.model(input_ids=tokens).logits.float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def trace(size: Size, layers: int, batch: int, length: int) -> Traced:
    """Trace forward and backward of a model with its loss."""
    traced = Traced([], {})

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_graph(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            traced.graphs[kind] = import_graph(module, kind)
            return boxed(lambda arguments: module.forward(*arguments))

        return compile_graph

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        module = normalize(module)
        recognise(module, 1 << 60, ("cpu",))
        traced.names = [node.name for node in module.graph.find_nodes(op="placeholder")]
        return aot_autograd(
            module,
            inputs,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            decompositions=decompositions(),
        )

    config = LlamaConfig(
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=layers,
        num_attention_heads=size.heads,
        num_key_value_heads=8,
        vocab_size=128256,
        attn_implementation="sdpa",
        use_cache=False,
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)
        model = Loss(LlamaForCausalLM(config))
        torch.set_default_dtype(torch.float32)
        tokens = torch.zeros(batch, length, dtype=torch.long)
        torch.compile(model, backend=backend)(tokens, tokens).backward()
    return traced


def main(arguments: Sequence[str]) -> None:
    """Trace, and write a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", choices=SIZES, default="70B")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the model has")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--length", type=int, default=8192)
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    layers = options.layers or size.layers
    start = time.perf_counter()
    traced = trace(size, layers, options.batch, options.length)
    write(traced, options.file)
    seconds = time.perf_counter() - start
    print(f"traced {layers} layers: {traced.count} ops in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
