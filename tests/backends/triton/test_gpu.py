"""Kernels on a real device, against the oracle on the CPU."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.reference.kernels import run_kernel
from lynx.backends.triton import launchable, raise_failures
from lynx.backends.triton.autotune import autotune, loaded
from lynx.ir.types import DType
from tests.backends.triton import samples
from tests.backends.triton.test_kernels import contents

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

KERNELS = {
    "pointwise": samples.pointwise(100_000),
    "transposed": samples.transposed(1000, 777),
    "softmax": samples.softmax(300, 1000),
    "softmax looped": samples.softmax(300, 20_000),
    "softmax split": samples.softmax(2, 100_000),
    "layer_norm": samples.layer_norm(500, 768),
    "layer_norm backward": samples.layer_norm_backward(5000, 768),
    "cross_entropy": samples.cross_entropy(100, 50_000),
    "embedding": samples.gather(1000, 96, 5),
    "embedding backward": samples.scatter_add(1000, 96, 5),
    **{
        f"{combine} over {over}": samples.reduction(combine, 2000, 300, over)
        for combine in ("sum", "max", "argmax", "welford", "softmax")
        for over in ("i", "j", "ij")
    },
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    kernel = KERNELS[name]
    theirs = [contents(buffer, {}) for buffer in kernel.buffers]
    ours = [tensor.cuda() for tensor in theirs]
    launchable(kernel)(ours, {})
    raise_failures()
    run_kernel(kernel, theirs)
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_deterministic_sums_are_the_same_each_time() -> None:
    kernel = samples.scatter_add(3000, 64, 5)
    given = [contents(buffer, {}).cuda() for buffer in kernel.buffers]
    launcher = launchable(kernel, is_deterministic=True)
    results = []
    for _ in range(3):
        tensors = [tensor.clone() for tensor in given]
        launcher(tensors, {})
        results.append(tensors[-1].cpu())
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_failed_check_is_told_later_and_the_device_goes_on() -> None:
    kernel = samples.cross_entropy(4, 10)
    tensors = [contents(buffer, {}).cuda() for buffer in kernel.buffers]
    place = [buffer.name for buffer in kernel.buffers].index("target")
    tensors[place][2] = 10
    launchable(kernel)(tensors, {})
    with pytest.raises(IndexError, match="target out of range"):
        raise_failures()
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_autotuned_kernels_are_right() -> None:
    kernel = samples.softmax(512, 1024, DType.BF16)
    theirs = [contents(buffer, {}) for buffer in kernel.buffers]
    ours = [tensor.cuda() for tensor in theirs]
    loaded(kernel, autotune(kernel, ours, {})).launch(ours, [])
    run_kernel(kernel, theirs)
    torch.testing.assert_close(ours[1].cpu(), theirs[1], rtol=1e-2, atol=1e-2)
