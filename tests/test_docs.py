"""The documentation is complete, and what it tells readers to type works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.architecture import PAGE, files_to_list, listed, update
from tests.tools.tree import ROOT, tracked_files

PAGES = ["README.md", "CONTRIBUTING.md"]
# Checked by name only: they install, or run what the suite runs anyway.
TARGETS = ("demo", "test", "check", "bench")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def commands() -> list[str]:
    return [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]


def run(arguments: list[str], scratch: Path, **variables: str) -> str:
    """Run a command as if in a clone, writing only to a scratch folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    result = subprocess.run(
        arguments, cwd=scratch, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_file_has_a_line_in_the_architecture() -> None:
    known, files = listed(PAGE.read_text()), files_to_list()
    assert {
        "missing; see `python -m tests.tools.architecture --write`": sorted({*files} - {*known}),
        "gone": sorted({*known} - {*files}),
        "twice": sorted({path for path in known if known.count(path) > 1}),
    } == {"missing; see `python -m tests.tools.architecture --write`": [], "gone": [], "twice": []}


def test_the_architecture_is_updated_in_place() -> None:
    page = "# T\n\n## `ir/`\n\n- `ir/gone.py`: old.\n\n## Other\n\nText.\n"
    updated = update(page, ["ir/core.py"])
    assert "ir/gone.py" not in updated
    assert "- `ir/core.py`: values, ops" in updated
    assert update(updated, ["ir/core.py"]) == updated


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_documentation(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        assert words[1] in TARGETS
        run(["make", "--dry-run", "--directory", str(ROOT), *words[1:]], tmp_path)
        return
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    rest = words[len(variables) :]
    assert rest[0] == ".venv/bin/python", "everything else is not tried"
    rest = [str(ROOT / word) if word.startswith("examples/") else word for word in rest[1:]]
    assert run([sys.executable, *rest], tmp_path, **variables)


def test_python_in_the_readme(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("README.md", "python")))
    assert "graph" in run([sys.executable, str(script)], tmp_path)


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page}: {target}"
        for page in tracked_files(".md")
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
        if not (ROOT / page.parent / target).exists()
    ]
    assert not broken


EXAMPLES = {
    "train_gpt.py": ["--quick"],
    "train_distributed.py": ["--recipe=tp+sp", "--processes=2", "--steps=2", "--layers=1"],
    "inference.py": ["--layers=1", "--width=32", "--tokens=3"],
    "inspect_ir.py": ["--width=4"],
}
EXPECTED = {
    "train_distributed.py": r"off from those of one process by at most (0|\d(\.\d)?e-0[5-9])\b",
    "train_gpt.py": r"the loss of lynx is off from eager's by at most (0|\d(\.\d)?e-0[5-9])\b",
    "inference.py": r"the same tokens\n(.*the same tokens\n){2}$",
    "inspect_ir.py": r"graph @",
}


def test_every_example_is_run() -> None:
    assert sorted(EXAMPLES) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / name), *EXAMPLES[name]]
    assert re.search(EXPECTED[name], run(script, tmp_path))


def test_the_benchmark_runs(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks/models.py"), "--models=mlp", "--steps=3"]
    assert re.search(r"^mlp +lynx +.*x$", run(script, tmp_path), re.M)


def test_the_measurements_of_the_readme_run(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks/scale.py"), "--ops=200", "--passes"]
    assert "plan-memory" in run(script, tmp_path)
    # What the sweep does is tested in `tests/opdb`.
    assert "--samples" in run([sys.executable, "-m", "tests.opdb.sweep", "--help"], tmp_path)
