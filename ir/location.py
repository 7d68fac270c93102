"""Where in the user's model an op comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's model.

    `file` and `line` point at the source, `module` is the path of the submodule that was running,
    such as `blocks.3.attn`. Each part may be empty when it is not known.
    """

    file: str = ""
    line: int = 0
    module: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything at all is known of the place."""
        return bool(self.file or self.module)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        if self.module:
            return f"{place} in {self.module}" if place else self.module
        return place or "unknown location"


UNKNOWN = Location()
