"""One interpreting child process for all tests of the Triton back end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lynx.backends.triton.interpreter import TritonInterpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[TritonInterpreter]:
    with TritonInterpreter() as child:
        yield child
