"""Kernels are compiled before they are launched, and those that a device refuses run elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from lynx.backends.triton import launches
from lynx.backends.triton.launches import GuardedLaunch, KernelLaunchError, LaunchCompiler
from lynx.ir.dims import evaluate, symbol
from lynx.ir.kernel import Kernel
from lynx.ir.native import Launch, LaunchRequest
from lynx.ir.types import DType
from tests.backends.triton import samples
from tests.backends.triton.pretended import pretended_device


def compiled(*kernels: Kernel, warn: Callable[[str], None] = print) -> tuple[Launch, ...]:
    requests = tuple(LaunchRequest(kernel, "cpu") for kernel in kernels)
    return LaunchCompiler(warn=warn)(requests)


def memory(kernel: Kernel, sizes: dict[str, int], offset: int = 0) -> list[torch.Tensor]:
    types = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.I64: torch.int64}
    return [
        torch.zeros(evaluate(buffer.extent, sizes) + offset, dtype=types[buffer.dtype])[offset:]
        for buffer in kernel.buffers
    ]


def test_launches_compile_nothing() -> None:
    static, dynamic = samples.softmax(16, 32), samples.pointwise(symbol("s0"), DType.BF16)
    with pretended_device() as device:
        first, second = compiled(static, dynamic)
        loaded = len(device.loaded)
        assert loaded == 2
        for _ in range(2):
            assert first.run(memory(static, {}))
            for size in (16, 17, 1000):
                assert second.run(memory(dynamic, {"s0": size}), size)
        assert len(device.loaded) == loaded
        assert len(device.launched) == 8
        assert {grid for _, grid, _ in device.launched} == {(1, 1, 1), (16, 1, 1)}


def test_tensors_that_are_not_aligned_get_a_variant() -> None:
    kernel = samples.pointwise(1000)
    with pretended_device() as device:
        (launch,) = compiled(kernel)
        for offset in (0, 1, 0, 1):
            assert launch.run(memory(kernel, {}, offset))
        assert len(device.loaded) == 2


def test_large_sizes_are_indexed_with_64_bits() -> None:
    kernel = samples.pointwise(symbol("s0"))
    with pretended_device() as device:
        (launch,) = compiled(kernel)
        tensors = [torch.zeros(1).expand(2**31) for _ in kernel.buffers]
        assert launch.run(tensors, 2**31)
        assert len(device.loaded) == 2
        assert 2**31 in [given for given in device.launched[-1][2] if isinstance(given, int)]


def test_a_kernel_that_does_not_compile_is_named_and_its_source_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = samples.pointwise(100), samples.softmax(3, 5)
    original = launches.print_module

    def printed(kernel: Kernel, **options: bool) -> launches.PrintedModule:
        module = original(kernel, **options)
        if kernel is not bad:
            return module
        text = module.text.replace("tl.exp", "tl.no_such_function").replace(
            "libdevice.exp", "tl.no_such_function"
        )
        return launches.PrintedModule(module.name, text, module.stages, module.messages)

    monkeypatch.setattr(launches, "print_module", printed)
    with pretended_device() as device:
        with pytest.raises(KernelLaunchError, match=f"kernel '{bad.name}' does not run") as caught:
            compiled(good, bad)
        assert caught.value.kernels == (bad,)
        path = re.search(r"source kept in (\S+\.py)", str(caught.value))
        assert path is not None
        assert "no_such_function" in Path(path[1]).read_text()
        assert len(device.loaded) == 1


def test_a_kernel_that_asks_for_too_much_is_told_when_it_is_compiled() -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("out of resource: shared memory")

    with (
        pretended_device(refuse),
        pytest.raises(KernelLaunchError, match="out of resource: shared memory"),
    ):
        compiled(samples.pointwise(101))


class Refusing:
    """Something that launches until told not to."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


def test_a_refused_launch_is_not_tried_again_and_warned_of_once() -> None:
    kernel, inner, heard = samples.pointwise(8), Refusing(), list[str]()
    launch = GuardedLaunch(kernel, "text", inner, heard.append)
    assert launch([])
    inner.error = RuntimeError("too many\n resources")
    assert not launch([])
    assert not launch([])
    assert inner.calls == 2
    (message,) = heard
    assert f"kernel '{kernel.name}' does not run: RuntimeError: too many resources" in message
    assert "source kept in" in message


def test_failed_checks_and_lack_of_memory_are_the_users() -> None:
    inner = Refusing()
    launch = GuardedLaunch(samples.pointwise(8), "text", inner, pytest.fail)
    for error in (IndexError("index out of range"), torch.OutOfMemoryError("no memory")):
        inner.error = error
        with pytest.raises(type(error)):
            launch([])


def test_what_may_be_half_done_is_not_begun_anew() -> None:
    inner = Refusing()
    inner.error = RuntimeError("no")
    launch = GuardedLaunch(samples.pointwise(8), "text", inner, pytest.fail, can_fall_back=False)
    with pytest.raises(KernelLaunchError, match="does not run"):
        launch([])
