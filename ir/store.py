"""What a store of compiled artifacts offers to back ends: bytes on disk under a content hash."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ArtifactStore(Protocol):
    """Files that outlive the process, written whole or not at all, shared by processes.

    `kind` is a short word such as "c" or "triton", `key` a hexadecimal digest of everything that
    the contents depend on, compiler version and target included.
    """

    def find(self, kind: str, key: str) -> Path | None:
        """Return the file of an intact entry, None if there is none."""
        ...

    def put(self, kind: str, key: str, contents: bytes) -> Path:
        """Write an entry and return its file, also when another process was first."""
        ...
