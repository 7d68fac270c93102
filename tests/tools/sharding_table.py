"""Write the table of sharding rules into `docs/sharding-rules.md`, from the iteration spaces.

python -m tests.tools.sharding_table
"""

from __future__ import annotations

import re

from lynx.ir.core import Op
from lynx.ir.ops.collective import Collective
from lynx.ir.shard_rules import COMBINES
from lynx.ir.space import FactorKind, IterationSpace, Window
from lynx.ir.tiles import is_tiled
from tests.samples.inputs import SAMPLES
from tests.tools.tree import ROOT

PAGE = ROOT / "docs/sharding-rules.md"

HEADER = """| op | rule | parallel | reduced | partial sums |
| --- | --- | --- | --- | --- |
"""
_TABLE = re.compile(r"(<!-- rules -->\n).*?(<!-- end of rules -->)", re.DOTALL)


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
    """Whether operands can be cut along a factor: one has it, and none under sliding windows."""
    axes = [axis for index_map in space.operands for axis in index_map]
    windows = [axis for axis in axes if isinstance(axis, Window)]
    if any(name == w.offset or (name == w.position and not is_tiled(space, w)) for w in windows):
        return False
    return any(name == axis.position if isinstance(axis, Window) else name in axis for axis in axes)


def table() -> str:
    """Return a line for each op, two where examples differ."""
    rows: dict[str, dict[str, None]] = {}
    for sample in SAMPLES.values():
        op = sample.op
        space = op.space()
        if space is None or op.is_random or isinstance(op, Collective) or not op.operands:
            continue
        lines = rows.setdefault(op.name, {})
        if len(lines) < 2:
            lines[row(op, space)] = None
    return HEADER + "\n".join(line for name in sorted(rows) for line in rows[name])


def updated(page: str) -> str:
    """Return the page with the table as it is now."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{table()}\n\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
