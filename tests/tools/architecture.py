"""Keep the list of files in ARCHITECTURE.md complete: say what is missing, or write it in.

    python -m tests.tools.architecture
    python -m tests.tools.architecture --write

A new file is listed with the first line of its docstring, or of the comment of a grammar, at the
end of its folder's section; put the line where a reader would look for it, and its words are then
yours.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.tools.tree import CODE, ROOT, tracked_files

PAGE = ROOT / "ARCHITECTURE.md"
HEADING = re.compile(r"^#+ `(?P<folder>[\w/]+)/`")
LINE = re.compile(r"^- `(?P<path>[\w/.]+)`: ")
LISTED = (*CODE, "examples", "benchmarks")


def files_to_list() -> list[str]:
    """Return the files that must have a line: code and grammars, but no empty faces."""
    return [
        str(path)
        for path in tracked_files()
        if path.parts[0] in LISTED and path.suffix in (".py", ".lark") and not _says_nothing(path)
    ]


def listed(text: str) -> list[str]:
    """Return the paths that the page has a line for, in order."""
    return [found["path"] for line in text.splitlines() if (found := LINE.match(line))]


def update(text: str, files: Sequence[str]) -> str:
    """Return the page without lines of files that are gone, and with lines for new ones."""
    known = listed(text)
    lines, folder = [], ""
    for line in [*text.splitlines(), "# `end/`"]:
        if heading := HEADING.match(line):
            while lines and not lines[-1]:
                lines.pop()
            new = [entry(f) for f in files if f not in known and _folder(f) == folder]
            if new and HEADING.match(lines[-1]):
                lines.append("")
            lines += new
            lines += ["", line]
            folder = heading["folder"]
        elif not (found := LINE.match(line)) or found["path"] in files:
            lines.append(line)
    return "\n".join(lines[:-2]) + "\n"


def entry(path: str) -> str:
    """Return a file's line, from its docstring."""
    if not path.endswith(".py"):
        comment = (ROOT / path).read_text().removeprefix("// ").replace("\n// ", " ")
        summary = re.split(r"[.;]\s", comment)[0] + "."
    else:
        docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
        summary = docstring.split("\n\n")[0].replace("\n", " ")
    return f"- `{path}`: {summary[:1].lower()}{summary[1:]}"


def _folder(path: str) -> str:
    return str(Path(path).parent)


def _says_nothing(path: Path) -> bool:
    return path.name == "__init__.py" and len((ROOT / path).read_text().splitlines()) <= 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what is missing, or with `--write` add it."""
    write = "--write" in (sys.argv[1:] if arguments is None else arguments)
    text, files = PAGE.read_text(), files_to_list()
    if write:
        text = update(text, files)
        PAGE.write_text(text)
    missing = [path for path in files if path not in listed(text)]
    gone = [path for path in listed(text) if path not in files]
    print("".join(f"missing: {path}\n" for path in missing), end="")
    print("".join(f"gone: {path}\n" for path in gone), end="")
    return int(bool(missing or gone))


if __name__ == "__main__":
    sys.exit(main())
