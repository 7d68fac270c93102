"""Chooses what computes each attention: a kernel of its own, or products and softmax."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import UsageError
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.ops.elementwise_arithmetic import Clamp
from lynx.ir.ops.fusion import Region
from lynx.ir.traversal import producers
from lynx.ir.types import TensorType
from lynx.passes.base import PassContext, Remark, Requirement, register_pass
from lynx.passes.decompose import RULES as DECOMPOSITIONS
from lynx.passes.decompose_build import Number, maximum, minimum
from lynx.passes.decompose_build import choose as where
from lynx.passes.requirements import IS_GRAPH
from lynx.passes.rewrite import NoMatch, Rewritten, Rule, rewrite, rule
from lynx.passes.target import Target

from .device import why_not_on_device
from .expand import expand_attention, expand_attention_backward

SUBJECT = "attention"
"""What remarks on attention are about."""

MOST_BYTES = 256 << 20
"""Scores that are larger are never computed all at once."""

WAYS = ("", "whole", "unfused")


@dataclass(frozen=True, slots=True)
class Choice:
    """How an attention is computed, and why; `unfused` is by way of all scores."""

    is_unfused: bool
    reason: str


@register_pass
@dataclass(frozen=True)
class ChooseAttention:
    """Keep attention whole for a kernel of its own, or expand it into products and softmax.

    `way` forces one: `whole` or `unfused`. What is kept has a score function of primitive ops.
    """

    name: ClassVar[str] = "choose-attention"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    way: str = ""

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise UsageError("bad-option", f"attention is 'whole' or 'unfused', not '{self.way}'")

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with the attention that no kernel computes expanded."""
        if not any(isinstance(op, Attending) for op in module.ops):
            return module
        return rewrite(self._simplified(module, context), self._rules(context), context)

    def _simplified(self, module: Graph, context: PassContext) -> Graph:
        """Tell what is chosen, and prepare the score functions of what is kept."""
        ops: list[Op] = []
        mapping: dict[Value, Value] = {}
        for op in module.ops:
            made = op.replace_operands(mapping)
            if isinstance(op, Attending):
                primitive = _with_primitive_score(made, context)
                assert isinstance(primitive, Attending), primitive
                choice = self._choose(primitive, context.target)
                context.remarks.append(Remark(SUBJECT, choice.reason, op.loc))
                if not choice.is_unfused:
                    made = primitive
            ops.append(made)
            if made is not op:
                mapping.update(zip(op.results, made.results, strict=True))
        return module.with_ops(tuple(ops), mapping) if mapping else module

    def _rules(self, context: PassContext) -> tuple[Rule, ...]:
        def expand(op: Attending) -> Rewritten:
            if not self._choose(op, context.target).is_unfused:
                return NoMatch("it stays whole")
            made = _expanded(op, context.target)
            if isinstance(made, NoMatch):
                context.remarks.append(Remark(SUBJECT, f"stays whole: {made.reason}", op.loc))
            return made

        return (Rule("expand_attention", (Attention, AttentionBackward), expand),)

    def _choose(self, op: Attending, target: Target) -> Choice:
        if self.way:
            return Choice(self.way == "unfused", f"computed {self.way}, as asked for")
        return choose(op, target)


def choose(op: Attending, target: Target) -> Choice:
    """Return how an attention is computed on a machine: whole wherever there is a kernel for it.

    Short sequences are no exception, but gradients of a single query are, for which packing keys
    and values does not pay. On two threads of a CPU with AVX2 the kernels take this part of the
    time of products and softmax (medians of 31 rounds, both in turn; a repeated measurement may be
    off by 0.1): one query of `f32` 0.68 to 0.77, of `bf16` 0.66; 8 queries and 300 keys 0.9; with a
    causal mask 0.34 to 0.38; with gradients from 16 to 256 queries 0.78 to 0.92, of `bf16` 0.89 to
    1.02; with gradients of 2 to 8 queries 0.85 to 1.23, but of one query 1.7 to 2.1. Without mask
    and gradients, `f32` of 16 to 256 queries and depths of 32 to 128 come out between 0.79 and
    1.18, 1.02 in the median, with no rule by heads or depth; and the scores need no memory.
    """
    nbytes = op.dot_type.nbytes
    is_large = isinstance(nbytes, int) and nbytes > MOST_BYTES
    if target.has_attention:
        reason = _why_no_kernel(op, target, is_large=is_large)
        if not reason:
            return Choice(False, "computed by a kernel of its own")
        if not is_large:
            return Choice(True, f"computed by products and softmax: {reason}")
    if isinstance(nbytes, int) and is_large:
        return Choice(False, f"computed in parts: all scores are {nbytes >> 20} MiB")
    return Choice(True, "computed by products and softmax: no kernel of its own for this machine")


def _why_no_kernel(op: Attending, target: Target, *, is_large: bool) -> str:
    """Return why the kernel that a machine has is not taken, empty if it is."""
    if target.launches:
        return why_not_on_device(op, target)
    queries = op.q.shape[2]
    is_single = isinstance(queries, int) and queries == 1
    if isinstance(op, AttentionBackward) and is_single and target.is_cpu and not is_large:
        return "gradients of a single query"
    return ""


def _expanded(op: Attending, target: Target) -> Rewritten:
    if isinstance(op, AttentionBackward):
        return expand_attention_backward(op, target)
    assert isinstance(op, Attention)
    return expand_attention(op, target)


def _with_primitive_score(op: Op, context: PassContext) -> Op:
    """Return an attention whose score function consists of primitive ops."""
    assert isinstance(op, Attention | AttentionBackward)
    if op.score is None:
        return op
    region = primitive_region(op.score, context)
    return op if region is op.score else dataclasses.replace(op, score=region)


@rule
def expand_clamp(op: Clamp) -> Value | NoMatch:
    """Choose what is within limits, so that it has the whole gradient where it equals one.

    clamp(x, min, none)  ==>  where(x >= min, x, maximum(x, min))
    """
    limits = [limit for limit in (op.min, op.max) if isinstance(limit, Value)]
    dtype = op.x.tensor_type.dtype
    if not limits or not all(isinstance(limit.type, TensorType) for limit in limits):
        return NoMatch("its limits are numbers")
    if any(limit.tensor_type.dtype is not dtype for limit in limits):
        return NoMatch("its limits are of another type")
    x = Number(op.x)
    if isinstance(op.min, Value):
        least = Number(op.min)
        x = where(x >= least, x, maximum(x, least))
    if isinstance(op.max, Value):
        most = Number(op.max)
        x = where(x <= most, x, minimum(x, most))
    return x.value


_PRIMITIVES = (*DECOMPOSITIONS, expand_clamp)


def primitive_region(region: Region, context: PassContext) -> Region:
    """Return a region without composite ops and without ops that nothing needs."""
    graph = Graph("score", region.parameters, region.ops, region.results)
    changed = rewrite(graph, _PRIMITIVES, context)
    results = tuple(value for value in changed.outputs if value is not None)
    ops = tuple(producers(results))
    same = len(ops) == len(region.ops) and all(a is b for a, b in zip(ops, region.ops, strict=True))
    return region if same else Region(region.parameters, ops, results)
