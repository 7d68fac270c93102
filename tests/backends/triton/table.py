"""Print what kernels take of two devices: `python -m tests.backends.triton.table`."""

from __future__ import annotations

from lynx.backends.triton.aot import TARGETS, table
from tests.backends.triton.test_ahead_of_time import resources

if __name__ == "__main__":
    print(table([one for target in TARGETS for one in resources(target)]))
