"""All processes run the same program: a digest of its text is compared before the first step."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass

from .failures import CommunicationError
from .groups import Groups


@dataclass
class Agreement:
    """Compares the text of one program among all processes of a mesh, once."""

    name: str
    text: str
    groups: Groups

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
        return (
            f"ranks compiled different programs: {self.name} of rank {ranks[0]} and that of rank "
            f"{ranks[other]} differ first in {first_difference(texts[0], texts[other])}"
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
