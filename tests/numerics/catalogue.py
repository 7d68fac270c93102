"""The lines that random programs are made of, as `lines.txt` lists them."""

from __future__ import annotations

from pathlib import Path


def read_lines(text: str) -> dict[str, tuple[str, ...]]:
    """Return the lines of each kind; a heading starts with the kind in brackets."""
    kinds: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            kind = line[1 : line.index("]")]
            kinds[kind] = []
        elif line and not line.startswith("#"):
            kinds[kind].append(line)
    return {kind: tuple(lines) for kind, lines in kinds.items()}


KINDS = read_lines(Path(__file__).with_name("lines.txt").read_text())
