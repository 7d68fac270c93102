"""Memory that is given back: where the C library can, and no failure where it cannot."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest

from lynx import memory

_BLOCK = 1 << 16


def _resident() -> int:
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * 4096


@pytest.mark.skipif(memory._trim() is None, reason="the C library gives nothing back when asked")
def test_free_blocks_are_given_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    blocks = [library.malloc(_BLOCK) for _ in range(1024)]
    for block in blocks:
        ctypes.memset(block, 1, _BLOCK)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        library.free(block)
    before = _resident()
    memory.give_back()
    assert before - _resident() > 500 * _BLOCK
    library.free(blocks[-1])


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        """A C library without `malloc_trim`."""

    def library(_: Any) -> Without:
        return Without()

    memory._trim.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", library)
    memory.give_back()
    memory._trim.cache_clear()
    monkeypatch.setattr(sys, "platform", "win32")
    memory.give_back()
    memory._trim.cache_clear()
