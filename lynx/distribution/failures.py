"""What can go wrong between processes, and who is to blame."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

import torch.distributed

from lynx.ir.errors import LynxError

from .torch_internals import default_store

_PROBE_SECONDS = 5.0


class CommunicationError(LynxError):
    """Processes did not get together: one is dead, hangs, or runs another program."""


def silent_ranks(ranks: Sequence[int], attempt: str, seconds: float = _PROBE_SECONDS) -> list[int]:
    """Return which processes do not report within a time that they saw a failure too.

    Each survivor of a failed collective comes here, so those that do not are dead or stuck.
    """
    store = default_store()
    limit = datetime.timedelta(seconds=seconds)
    own = torch.distributed.get_rank()
    try:
        store.set(f"lynx/failed/{attempt}/{own}", "1")
    except RuntimeError:
        return [0]  # who holds the store is gone
    end = time.monotonic() + limit.total_seconds()
    silent: list[int] = []
    for rank in ranks:
        left = max(end - time.monotonic(), 0.05)
        try:
            store.wait([f"lynx/failed/{attempt}/{rank}"], datetime.timedelta(seconds=left))
        except RuntimeError:
            silent.append(rank)
    return silent
