"""What a plan does in words, for remarks."""

from __future__ import annotations

from lynx.ir.dims import product
from lynx.ir.ops.layout import quotient
from lynx.ir.score import score_region
from lynx.passes.attention.description import describe_score, group_words

from .plans import Plan


def description_of(plan: Plan) -> str:
    """Return what is attended to and how: masks, scale, softcap, biases, groups, sink, dropout."""
    layout = plan.layout
    region = score_region(plan.score, plan.sizes) if plan.score else None
    words = describe_score(region).words()
    heads, shared = (product(a.size for a in atoms) for atoms in (layout.heads, layout.shared))
    words += group_words(quotient(heads, shared))
    words += ["sink"] if plan.sink is not None else []
    if plan.is_dropout:
        words.append(f"dropout {1 - 1 / plan.keep_scale:.4g}")
    elif plan.keep is not None:
        words.append("masked weights")
    return ", ".join(words)
