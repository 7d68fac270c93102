"""Run the tests of the frontend and the runtime against several versions of torch, side by side.

    python -m tests.tools.versions 2.11.0 2.13.0 --folder /tmp/versions

Each version gets a virtual environment of its own, which is kept in the folder. This downloads
much; it is no part of the default suite.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/frontend", "tests/runtime")


def environment(version: str, folder: Path) -> Path:
    """Return the Python of an environment with this torch and Lynx, made if it is missing."""
    home = folder / f"torch-{version}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"torch=={version}"], check=True)
        subprocess.run([*pip, "--editable", f"{ROOT}[dev]", f"torch=={version}"], check=True)
        (home / "ready").touch()
    return python


def main(arguments: Sequence[str] | None = None) -> int:
    """Test each version; return how many failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions")
    options = parser.parse_args(arguments)
    failed = 0
    for version in options.versions:
        python = environment(version, options.folder)
        result = subprocess.run([str(python), "-m", "pytest", "-q", *TESTS], cwd=ROOT, check=False)
        failed += result.returncode != 0
        print(f"torch {version}: {'failed' if result.returncode else 'passed'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
