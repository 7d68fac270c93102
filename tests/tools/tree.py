"""What the repository consists of: tracked files, modules by import name, copies and wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("lynx", "ir", "passes", "backends", "runtime")


def tracked_files(suffix: str = "") -> list[Path]:
    """Return the files that git tracks or would, relative to the root, in order."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = sorted({Path(line) for line in listed.stdout.splitlines()})
    return [path for path in paths if path.name.endswith(suffix) and (ROOT / path).is_file()]


def package_folders() -> dict[str, str]:
    """Return the folder of each package, by import name, as pyproject.toml maps them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    return folders


def modules() -> dict[str, Path]:
    """Return the file of each module of the packages, relative to the root, by import name."""
    found = {}
    for package, folder in package_folders().items():
        for path in sorted((ROOT / folder).glob("*.py")):
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            found[name] = path.relative_to(ROOT)
    return dict(sorted(found.items()))


def copy_tree(destination: Path) -> Path:
    """Copy the tracked files to a folder, as a clone would have them, and return it."""
    for path in tracked_files():
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    return destination


def build_wheel(scratch: Path) -> Path:
    """Build the wheel from a copy of the tree under `scratch`, without a network."""
    source = copy_tree(scratch / "source")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(scratch), "."]
    subprocess.run(command, cwd=source, check=True)
    (wheel,) = scratch.glob("*.whl")
    return wheel


def install(scratch: Path) -> Path:
    """Install the wheel, and nothing that it depends on, into a folder of `scratch`."""
    target = scratch / "installed"
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(target)]
    wheel = build_wheel(scratch)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return target
