"""How long it takes to lay large models out on large meshes: propagation and partition.

    python benchmarks/distribution_scale.py                     70B: 80 layers, a mesh of 32 by 8
    python benchmarks/distribution_scale.py --size 405B         126 layers, a mesh of 128 by 16 by 8
    python benchmarks/distribution_scale.py --layers 4          quick

No numbers are computed and no memory is taken for them: the model is traced with fake tensors,
which takes minutes and is not what is measured. Parameters are cut by tensor parallelism and
by FSDP.
"""

from __future__ import annotations

import argparse
import collections
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from lynx.compat import aot_autograd, boxed
from lynx.decompositions import decompositions
from lynx.importer import import_graph
from lynx.ir import Graph, Mesh, TensorType
from lynx.ir.ops import Collective
from lynx.ir.sharding import parse_sharding, replicated
from lynx.normalize import normalize
from lynx.passes import PassContext
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import Distributed, distribute
from lynx.recognise import recognise

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Size:
    """A Llama 3, and the mesh that it is trained on."""

    layers: int
    width: int
    inner: int
    heads: int
    mesh: Mesh


SIZES = {
    "70B": Size(80, 8192, 28672, 64, Mesh("mesh", (("dp", 32), ("tp", 8)))),
    "405B": Size(126, 16384, 53248, 128, Mesh("mesh", (("rep", 128), ("dp", 16), ("tp", 8)))),
}
_CUT_BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed")


class Loss(torch.nn.Module):
    """The model with its loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of tokens."""
        logits = self.model(input_ids=tokens).logits.float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Traced:
    """Forward and backward, with the names of the inputs of forward."""

    names: list[str]
    graphs: dict[str, Graph]


def trace(size: Size, layers: int, batch: int, length: int) -> Traced:
    """Trace the model with fake tensors; takes minutes for many layers."""
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


def sharding_of(name: str, type_: TensorType, mesh: Mesh) -> Annotation:
    """Return how an input lies: data by `dp`, weights by `tp` as in Megatron, and by `dp`."""
    data = "(rep, dp)" if "rep" in mesh.names else "dp"
    if "weight" not in name:
        is_data = type_.rank == 2
        text = f"{data}, _" if is_data else ", ".join("_" * type_.rank)
        return Annotation(parse_sharding(text, mesh), 0)
    if type_.rank == 1:
        return Annotation(parse_sharding("dp", mesh))
    by_rows = any(part in name for part in _CUT_BY_ROWS)
    return Annotation(parse_sharding("(tp, dp), _" if by_rows else "dp, tp", mesh))


def lay_out(traced: Traced, mesh: Mesh) -> tuple[Distributed, Distributed]:
    """Lay forward out, then backward, whose inputs lie as forward left them."""
    forward, backward = traced.graphs["forward"], traced.graphs["backward"]
    given = tuple(
        sharding_of(name, value.tensor_type, mesh)
        for name, value in zip(traced.names, forward.inputs, strict=True)
    )
    outputs = (replicated(0, mesh), *(None,) * (len(forward.outputs) - 1))
    first = distribute(forward, Annotations(mesh, given, outputs), PassContext())
    kept: list[Annotation | None] = []
    for output, levels in zip(first.graph.outputs[1:], first.output_levels[1:], strict=True):
        lies = output.type if output is not None else None
        if not isinstance(lies, TensorType):
            kept.append(None)
            continue
        sharding = lies.sharding or replicated(lies.rank, mesh)
        kept.append(Annotation(sharding, 1, tuple(sorted(levels.items()))))
    kept.append(Annotation(replicated(0, mesh)))
    wanted = tuple(
        None if output is None else annotation.sharding
        for output, annotation in zip(backward.outputs, given, strict=True)
    )
    return first, distribute(backward, Annotations(mesh, tuple(kept), wanted), PassContext())


def describe(graph: Graph) -> str:
    """Return how often each collective is in a program."""
    counted = collections.Counter(
        f"{op.name} {'+'.join(op.axes)}"
        for op in graph.ops
        if isinstance(op, Collective) and op.needs_communication
    )
    return ", ".join(f"{count} {name}" for name, count in counted.items())


def main(arguments: Sequence[str]) -> None:
    """Trace, lay out, and print what that took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="70B")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the model has")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--length", type=int, default=8192)
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    layers = options.layers or size.layers
    start = time.perf_counter()
    traced = trace(size, layers, options.batch, options.length)
    count = sum(len(graph.ops) for graph in traced.graphs.values())
    print(f"traced {layers} layers: {count} ops in {time.perf_counter() - start:.0f} s", flush=True)
    start = time.perf_counter()
    forward, backward = lay_out(traced, size.mesh)
    seconds = time.perf_counter() - start
    print(f"laid out on {size.mesh.device_count} devices ({size.mesh}) in {seconds:.1f} s")
    print(f"forward:  {describe(forward.graph)}")
    print(f"backward: {describe(backward.graph)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory of the process, tracing included: {peak} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
