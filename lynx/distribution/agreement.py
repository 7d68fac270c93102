"""All processes run the same program: a digest of its text is compared before the first step."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from .failures import CommunicationError
from .groups import Groups

_NAME = re.compile(r"%(\w+)")


@dataclass
class Agreement:
    """Compares the text of one program among all processes of a mesh, once.

    `titles` are the user's names of values in the text.
    """

    name: str
    text: str
    groups: Groups
    titles: Mapping[str, str] = field(default_factory=dict)

    def reach(self) -> None:
        """Return when all processes have the text; `CommunicationError` where one has another."""
        group = self.groups.control()
        digest = hashlib.blake2b(self.text.encode(), digest_size=32).digest()
        digests = group.all_gather_bytes(digest, f"the comparison of {self.name}")
        if len(set(digests)) == 1:
            return
        packed = zlib.compress(self.text.encode())
        texts = [
            zlib.decompress(one).decode()
            for one in group.all_gather_bytes(packed, f"the comparison of {self.name}")
        ]
        raise CommunicationError("programs-differ", self._difference(texts))

    def _difference(self, texts: list[str]) -> str:
        ranks = self.groups.control().ranks
        other = next(i for i, text in enumerate(texts) if text != texts[0])
        difference = first_difference(texts[0], texts[other])
        named = [name for name in dict.fromkeys(_NAME.findall(difference)) if name in self.titles]
        known = "".join(f"\n  %{name} is {self.titles[name]}" for name in named)
        return (
            f"ranks compiled different programs: {self.name} of rank {ranks[0]} and that of rank "
            f"{ranks[other]} differ first in {difference}{known}\n"
            "All ranks must call the model alike: inputs of the same shapes and types, the same "
            "settings, and no code that depends on the rank"
        )


def first_difference(left: str, right: str) -> str:
    """Return the first line in which two texts differ, on both sides."""
    ours, theirs = left.splitlines(), right.splitlines()
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False), 1):
        if a != b:
            return f"line {number}:\n  - {a.strip()}\n  + {b.strip()}"
    number = min(len(ours), len(theirs))
    rest = ours[number:] or theirs[number:]
    sign = "-" if len(ours) > number else "+"
    return f"line {number + 1}:\n  {sign} {rest[0].strip() if rest else ''}"
