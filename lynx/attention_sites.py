"""Where a model attends, in words: what each site is, who computes it, or why it was left."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lynx.ir.core import Op
from lynx.ir.dims import Dim, format_dim
from lynx.ir.location import Location
from lynx.ir.ops.attention import Attending, AttentionBackward
from lynx.passes.attention import SUBJECT, describe_attention

from .records import CompiledGraph

_LEFT = "not fused: "
_NATIVE = "native kernel"


@dataclass(frozen=True)
class AttentionSite:
    """One attention of a model, or its gradients.

    `words` say what it is: mask, scale, softcap, biases, groups, sink, dropout, depth; `sizes` are
    batch, heads, queries and keys. `provider` says what computes it and why. A site that was not
    recognised has only `refusal`, the reason.
    """

    loc: Location
    words: tuple[str, ...] = ()
    sizes: tuple[Dim, ...] = ()
    dtype: str = ""
    provider: str = ""
    is_gradient: bool = False
    refusal: str = ""

    def __str__(self) -> str:
        if self.refusal:
            return f"{self.loc}: left as it is, since {self.refusal}"
        batch, heads, queries, keys = map(format_dim, self.sizes)
        kind = "gradients" if self.is_gradient else "attention"
        what = f"{kind} of {self.dtype} over {batch} x {heads} x {queries} x {keys}"
        return f"{self.loc}: {', '.join(self.words)}; {what}, {self.provider}"


def attention_sites(record: CompiledGraph) -> Iterator[AttentionSite]:
    """Yield the sites of a graph in order, then those that were not recognised."""
    ops = [] if record.imported is None else list(_attending(record.imported.ops))
    providers = _Providers(record)
    for op in ops:
        yield AttentionSite(
            op.loc,
            tuple(describe_attention(op)),
            op.dot_type.shape,
            str(op.q.tensor_type.dtype),
            providers.take(op),
            isinstance(op, AttentionBackward),
        )
    for remark in record.remarks:
        if remark.subject == SUBJECT and remark.message.startswith(_LEFT):
            yield AttentionSite(remark.loc, refusal=remark.message.removeprefix(_LEFT))


def _attending(ops: Sequence[Op]) -> Iterator[Attending]:
    return (op for op in ops if isinstance(op, Attending))


class _Providers:
    """What computes the attentions of a graph; those of one place in the model go in order."""

    def __init__(self, record: CompiledGraph) -> None:
        self.whole: dict[tuple[type[Op], Location], deque[str]] = defaultdict(deque)
        self.reasons: dict[Location, deque[str]] = defaultdict(deque)
        for remark in record.remarks:
            if remark.subject == SUBJECT and remark.message.startswith("computed"):
                self.reasons[remark.loc].append(remark.message)
        native = None if record.executable is None else record.executable.native
        if native is None:
            return
        for index, step in enumerate(native.program.steps):
            if isinstance(step.op, Attending):
                done = _NATIVE if index in native.steps else "torch, in parts"
                self.whole[type(step.op), step.op.loc].append(done)

    def take(self, op: Attending) -> str:
        """Return what computes an attention, and why; equal ones may have been merged."""
        reason = _next(self.reasons[op.loc])
        provider = _next(self.whole[type(op), op.loc]) or "unfused"
        return f"{provider} ({reason})" if reason and provider != _NATIVE else provider


def _next(texts: deque[str]) -> str:
    """Return the next text, the last of them again and again."""
    if not texts:
        return ""
    return texts[0] if len(texts) == 1 else texts.popleft()
