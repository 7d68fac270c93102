"""Run mypy on an installed copy of the package: the layout of the tree is not that of imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tools.tree import ROOT, install


def check_types(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the package `lynx` in `folder`; the cache is kept in the repository."""
    settings = ["--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *settings, *cache, "-p", "lynx"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        result = check_types(install(Path(scratch)))
    print(result.stdout + result.stderr, end="")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
