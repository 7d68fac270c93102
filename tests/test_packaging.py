"""What is installed: the wheel's contents, its imports from elsewhere, the entry point, make."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tools.tree import CODE, ROOT, build_wheel, copy_tree, install, modules, tracked_files

SCRIPT = """
import sys
import lynx, lynx.ir.core, lynx.passes.fusion, lynx.runtime, lynx.backends.c
for module in (lynx, lynx.ir.core, lynx.passes.fusion, lynx.runtime, lynx.backends.c):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
import torch
f = torch.compile(lambda x: (x * 2).sin(), backend=sys.argv[2], options={"strict": True})
x = torch.randn(5)
torch.testing.assert_close(f(x), (x * 2).sin())
print("works")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("wheel"))


def run_elsewhere(folder: Path, script: str, *arguments: str, path: Path | None = None) -> str:
    """Run a script away from the repository, with `path` first among the folders of modules."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_holds_every_module_and_grammar(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_wheel(tmp_path)).namelist()
    wanted = [
        name.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
        for name, path in modules().items()
    ]
    assert [name for name in wanted if name not in names] == []
    grammars = [path for path in tracked_files(".lark") if path.parts[0] in CODE]
    assert [path.name for path in grammars if not any(n.endswith(path.name) for n in names)] == []
    assert "lynx/py.typed" in names
    assert "lynx/passes/distribution/targets/h100.toml" in names
    strangers = [n for n in names if not n.startswith(("lynx/", "lynx_compiler-"))]
    assert not strangers


def test_the_wheel_works_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    assert run_elsewhere(tmp_path, SCRIPT, str(installed), "lynx", path=installed) == "works\n"


def test_an_editable_install_works_from_elsewhere(tmp_path: Path) -> None:
    assert run_elsewhere(tmp_path, SCRIPT, str(ROOT), "lynx") == "works\n"


def test_the_backend_needs_no_import(tmp_path: Path) -> None:
    script = (
        "import torch; assert 'lynx' in torch.compiler.list_backends();"
        "print(torch.compile(torch.sin, backend='lynx')(torch.zeros(2)).tolist())"
    )
    assert run_elsewhere(tmp_path, script) == "[0.0, 0.0]\n"


def test_the_command_line_works_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    script = "from lynx.__main__ import main; assert main(['passes']) in (0, None)"
    assert "canonicalize" in run_elsewhere(tmp_path, script, path=installed)


# `lynx/__init__.py` itself needs torch; the folders below it must be able to do without.
WITHOUT_FACE = """
import sys, types
face = sys.modules["lynx"] = types.ModuleType("lynx")
face.__path__ = [sys.argv[1]]
import lynx.ir.ops, lynx.passes
print("torch" in sys.modules)
"""


def test_importing_ir_and_passes_imports_no_torch(installed: Path, tmp_path: Path) -> None:
    seen = run_elsewhere(tmp_path, WITHOUT_FACE, str(installed / "lynx"), path=installed)
    assert seen == "False\n"


def test_extras_and_entry_point() -> None:
    found = importlib.metadata.distribution("lynx-compiler")
    assert {"dev", "flash"} <= set(found.metadata.get_all("Provides-Extra") or [])
    (entry,) = [e for e in found.entry_points if e.group == "torch_dynamo_backends"]
    assert (entry.name, entry.load().__name__) == ("lynx", "lynx")


@pytest.mark.parametrize("name", ["plain", "with space", "lynx"])
def test_make_works_in_any_folder(name: str, tmp_path: Path) -> None:
    clone = copy_tree(tmp_path / name)
    for target in ("install", "demo", "test", "check", "bench", "clean"):
        command = ["make", "--dry-run", f"PYTHON={sys.executable}", target]
        shown = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
        assert shown.stdout


def test_make_says_which_python_is_missing(tmp_path: Path) -> None:
    clone = copy_tree(tmp_path / "clone")
    command = ["make", "PYTHON=", "install"]
    result = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "no Python 3.11 or newer found" in result.stderr


def test_ci_is_strict_bash() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)
