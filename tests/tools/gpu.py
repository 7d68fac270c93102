"""Which device tests of GPUs run on.

With `LYNX_TEST_DEVICE=cpu` they run on CPU tensors, with kernels in Triton's interpreter, so that
the tests themselves can be tried where there is no GPU.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

DEVICE = os.environ.get("LYNX_TEST_DEVICE", "cuda")
IS_REAL = DEVICE.startswith("cuda")

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        IS_REAL and not torch.cuda.is_available(), reason="needs a device that torch calls cuda"
    ),
]
"""The marks of a file whose tests need a GPU."""


def there(value: Any) -> Any:
    """Return nested values with all tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    if isinstance(value, dict):
        return {key: there(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(there, value))
    return value


def wait() -> None:
    """Wait for the device."""
    if IS_REAL:
        torch.cuda.synchronize()
