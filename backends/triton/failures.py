"""Tell the host which checks of kernels failed, without waiting for the device.

A kernel with checks gets an array with one flag a check, in which it sets those that fail. After
the launch the array is copied to the host in the same stream; the host looks at the copy before the
next call of the kernel, or in `raise_failures`, which waits. So an error of a device comes late, as
device-side errors do in eager, but it leaves the device usable. On the CPU it comes at once.
"""

from __future__ import annotations

import weakref

import torch


class Failures:
    """The flags of one kernel on one device."""

    def __init__(self, messages: tuple[str, ...], device: torch.device) -> None:
        self.messages = messages
        self.flags = torch.zeros(len(messages), dtype=torch.int32, device=device)
        pinned = device.type != "cpu"
        self.seen = torch.zeros(len(messages), dtype=torch.int32, pin_memory=pinned)
        _LIVING.add(self)

    def before_call(self) -> None:
        """Raise what an earlier call left, as far as it has arrived."""
        if self.flags.device.type != "cpu":
            self._raise()

    def after_call(self) -> None:
        """Send the flags to the host."""
        self.seen.copy_(self.flags, non_blocking=True)
        if self.flags.device.type == "cpu":
            self._raise()

    def wait(self) -> None:
        """Wait for the device, and raise what failed."""
        if self.flags.device.type != "cpu":
            torch.cuda.synchronize(self.flags.device)
        self._raise()

    def _raise(self) -> None:
        failed = [m for m, flag in zip(self.messages, self.seen.tolist(), strict=True) if flag]
        if failed:
            self.flags.zero_()
            self.seen.zero_()
            raise IndexError(failed[0])


_LIVING: weakref.WeakSet[Failures] = weakref.WeakSet()


def raise_arrived() -> None:
    """Raise `IndexError` if a check of any kernel failed, as far as devices have told by now."""
    for failures in list(_LIVING):
        failures.before_call()


def raise_failures() -> None:
    """Wait for all devices; raise `IndexError` if a check of any kernel failed since last asked."""
    for failures in list(_LIVING):
        failures.wait()
