"""Packages say what is public, and mean it."""

from __future__ import annotations

import importlib
import types

import pytest

from tests.tools.tree import package_folders


@pytest.mark.parametrize("name", [*package_folders()])
def test_what_packages_promise_exists(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert [item for item in names if not hasattr(module, item)] == []


def test_lynx_exports_exactly_its_public_names() -> None:
    lynx = importlib.import_module("lynx")
    public = [
        name
        for name, value in vars(lynx).items()
        if not name.startswith("_") and name != "annotations" and not is_module_of_ours(name, value)
    ]
    assert sorted(public) == [name for name in lynx.__all__ if not name.startswith("_")]
    assert lynx.__all__ == sorted(lynx.__all__)


def is_module_of_ours(name: str, value: object) -> bool:
    """Submodules appear as attributes once something imports them."""
    return isinstance(value, types.ModuleType) and value.__name__ == f"lynx.{name}"


def test_public_things_are_documented() -> None:
    lynx = importlib.import_module("lynx")
    exported = [(name, getattr(lynx, name)) for name in lynx.__all__ if not name.startswith("_")]
    bare = [name for name, value in exported if callable(value) and not value.__doc__]
    assert not bare
