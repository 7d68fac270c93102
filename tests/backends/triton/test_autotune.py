"""Choosing by measurement, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from lynx.backends.triton import print_module
from lynx.backends.triton.autotune import Tuner, autotune, autotune_product, measurement_key
from lynx.backends.triton.matmul import contraction_of, product_candidates
from lynx.backends.triton.schedule import candidates
from lynx.backends.triton.stages import stage
from lynx.ir.dims import symbol
from tests.backends.triton import samples


class FolderStore:
    """Entries in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, kind: str, key: str) -> Path | None:
        path = self.folder / f"{kind}-{key}"
        return path if path.exists() else None

    def put(self, kind: str, key: str, contents: bytes) -> Path:
        path = self.folder / f"{kind}-{key}"
        path.write_bytes(contents)
        return path


class Clock:
    """Gives call number n the n-th time, without running it."""

    def __init__(self, *times: float) -> None:
        self.times = times
        self.asked = 0

    def __call__(self, call: Callable[[], None]) -> float:
        del call
        self.asked += 1
        return self.times[(self.asked - 1) % len(self.times)]


def nothing() -> None:
    return


def test_the_fastest_is_remembered(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    clock = Clock(3.0, 1.0, 2.0)
    assert Tuner(store, clock).fastest([nothing] * 3, "ab") == 1
    assert Tuner(store, clock).fastest([nothing] * 3, "ab") == 1
    assert clock.asked == 3


def test_a_broken_or_foreign_entry_is_measured_anew(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for contents in (b"{", b"[]", b'{"fastest": 7, "of": 2}', b'{"fastest": 0, "of": 5}'):
        store.put("triton-schedule", "ab", contents)
        assert Tuner(store, Clock(2.0, 1.0)).fastest([nothing] * 2, "ab") == 1


def test_a_call_that_fails_is_out() -> None:
    def measure(call: Callable[[], None]) -> float:
        call()
        return 1.0

    def fail() -> None:
        raise RuntimeError("out of shared memory")

    assert Tuner(None, measure).fastest([fail, nothing], "ab") == 1


def test_a_measurement_that_always_fails_is_not_remembered(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the device is gone")

    def measure(call: Callable[[], None]) -> float:
        call()
        return 1.0

    assert Tuner(FolderStore(tmp_path), measure).fastest([fail, fail], "ab") == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_written_to_copies_of_all_its_memory() -> None:
    kernel = samples.pointwise(64)
    given = [torch.zeros(4, 32)[:, ::2] for _ in kernel.buffers]  # as many, but further apart
    seen: list[list[torch.Tensor]] = []

    class Noting:
        def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
            seen.append(list(tensors))

    def run(call: Callable[[], None]) -> float:
        call()
        return 1.0

    autotune(kernel, given, {}, Tuner(None, run, "test", lambda kernel, printed: Noting()))
    for buffer, ours, theirs in zip(kernel.buffers, seen[0], given, strict=True):
        assert (ours.data_ptr() != theirs.data_ptr()) == buffer.is_written
        assert not buffer.is_written or ours.numel() == 64


def test_keys_ignore_lines_of_the_user_and_small_changes_of_size() -> None:
    module = print_module(samples.pointwise(symbol("s0")))
    key = measurement_key(module, "H200", [1000])
    assert key == measurement_key(module, "H200", [1023])
    assert key != measurement_key(module, "H200", [4000])
    assert key != measurement_key(module, "MI300", [1000])


def test_schedules_are_chosen_stage_by_stage() -> None:
    kernel = samples.softmax(512, 1024)
    options = candidates(stage(kernel).stages[0])
    assert len(options) > 2
    tensors = [torch.zeros(512 * 1024)] * 2
    times = [9.0] * len(options)
    times[2] = 1.0
    tuned = autotune(kernel, tensors, {}, Tuner(None, Clock(*times), "test"))
    assert f"XBLOCK={options[2].x_block}" in tuned.text
    assert f"num_warps={options[2].warps}" in tuned.text


def test_products_compete_with_the_library() -> None:
    kernel = samples.product_of(1, 256, 256, 64)
    tensors = [torch.zeros(int(buffer.extent)) for buffer in kernel.buffers]
    contraction = contraction_of(kernel)
    assert not isinstance(contraction, str)
    count = len(product_candidates(contraction))

    def tune(*times: float) -> str | None:
        tuner = Tuner(None, Clock(*times), "test")
        found = autotune_product(kernel, tensors, {}, lambda _: None, tuner)
        return None if found is None else found.text

    assert tune(1.0, *[2.0] * count) is None
    text = tune(2.0, *[3.0] * (count - 1), 1.0)
    assert text is not None
    assert "tl.dot" in text
