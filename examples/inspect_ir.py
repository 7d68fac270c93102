"""Look at what Lynx makes of a model: the explanation, the program after each pass, one pass alone.

python examples/inspect_ir.py
python examples/inspect_ir.py --dumps somewhere --pipeline canonicalize,cse
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import lynx
from lynx.__main__ import main as command_line


class Network(nn.Module):
    """Two layers, with a product that is written twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.grow(x) * 2.0)
        return self.shrink(gate * torch.sigmoid(self.grow(x) * 2.0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Explain, dump, and run a pipeline on one of the files dumped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--pipeline", default="canonicalize,cse,dce")
    parser.add_argument("--dumps", type=Path, help="where to write (default: a temporary folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        show(options.width, options.pipeline, options.dumps or Path(scratch))


def show(width: int, pipeline: str, dumps: Path) -> None:
    """Print everything, writing the dumps into a folder."""
    model = Network(width)
    x = torch.randn(8, width)
    print(f"What happened\n\n{lynx.explain(model, x)}\n")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="lynx", options={"dump_dir": str(dumps)})
    compiled(x).sum().backward()
    files = sorted(dumps.glob("*/*.lynx"))
    print("What was written\n")
    for path in files:
        print(f"  {path.relative_to(dumps)}: {len(path.read_text().splitlines())} lines")
    first = files[0]
    print(f"\nWhat {pipeline!r} alone makes of {first.relative_to(dumps)}\n")
    command_line(["opt", str(first), "--pipeline", pipeline, "--no-locations"])


if __name__ == "__main__":
    main()
