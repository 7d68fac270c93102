"""Write the table of sharding rules into `docs/sharding-rules.md`, from the iteration spaces.

python -m tests.tools.sharding_table
"""

from __future__ import annotations

from lynx.ir.core import Op
from lynx.ir.ops.collective import Collective
from lynx.ir.shard_rules import COMBINES
from lynx.ir.space import FactorKind, IterationSpace, Window
from tests.samples.inputs import SAMPLES
from tests.tools.tree import ROOT

PAGE = ROOT / "docs/sharding-rules.md"

INTRODUCTION = """# Sharding rules

How each op may be cut by a mesh. The rules are not written down anywhere: they are read off the iteration
spaces that ops declare (`ir/space.py`, `ir/shard_rules.py`), and this page is generated from them by
`python -m tests.tools.sharding_table`. `tests/distribution/test_rules.py` runs each of them on meshes.

A rule names the factors of an op and how they index the dimensions of operands and results, `1` for a
dimension that no factor indexes. A factor under *parallel* cuts operands and results alike. One under
*reduced* leaves partial results, that are combined by the operation. *Partial sums* lists the operands, in
sets of positions, that may be partial sums; then so are the results. What is in none of these columns is
needed whole, as are dimensions under a sliding window (`o+k`).

Rules depend on attributes and ranks; those of examples are shown. Ops that draw random numbers, `aten` calls
and ops that are missing here need whole operands.

| op | rule | parallel | reduced | partial sums |
|---|---|---|---|---|
"""


def row(op: Op, space: IterationSpace) -> str:
    """Return the line of an op, without its newline."""
    rule = str(space).partition(";")[0]
    parallel = [f.name for f in space.of_kind(FactorKind.PARALLEL) if can_be_cut(space, f.name)]
    reduced = [
        f"{factor.name} ({COMBINES[factor.combine]})"
        for factor in space.of_kind(FactorKind.REDUCTION)
        if factor.combine in COMBINES and can_be_cut(space, factor.name)
    ]
    linear = ["+".join(map(str, positions)) for positions in space.linear]
    cells = [f"`{op.name}`", f"`{rule}`", " ".join(parallel), ", ".join(reduced), ", ".join(linear)]
    return f"| {' | '.join(cells)} |"


def can_be_cut(space: IterationSpace, name: str) -> bool:
    """Whether operands can be cut along a factor: one has it, and none under a window."""
    axes = [axis for index_map in space.operands for axis in index_map]
    if any(isinstance(axis, Window) and name in (axis.position, axis.offset) for axis in axes):
        return False
    return any(isinstance(axis, tuple) and name in axis for axis in axes)


def page() -> str:
    """Return the text of the page: a line for each op, two where examples differ much."""
    rows: dict[str, dict[str, None]] = {}
    for sample in SAMPLES.values():
        op = sample.op
        space = op.space()
        if space is None or op.is_random or isinstance(op, Collective) or not op.operands:
            continue
        lines = rows.setdefault(op.name, {})
        if len(lines) < 2:
            lines[row(op, space)] = None
    table = "\n".join(line for name in sorted(rows) for line in rows[name])
    return f"{INTRODUCTION}{table}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
