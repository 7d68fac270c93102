"""The store on disk: what is read back, and what survives crashes, damage, races and limits."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
import traceback
from pathlib import Path

import pytest

import lynx.cache
from lynx.__main__ import main
from lynx.cache import DiskStore, describe_cache, open_store
from lynx.settings import Settings, read_settings

LARGE = 1 << 30


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KEY = key_of("one")


def only_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "cache", LARGE)


def test_entries_are_read_back(store: DiskStore) -> None:
    assert store.find("c", KEY) is None
    path = store.put("c", KEY, b"contents")
    assert path.read_bytes() == b"contents"
    assert store.find("c", KEY) == path
    again = DiskStore(store.folder, LARGE)
    assert again.read("c", KEY) == b"contents"
    assert again.find("triton", KEY) is None
    assert again.find("c", key_of("two")) is None
    assert again.find("c", KEY[:32]) is None
    store.remove("c", KEY)
    assert again.find("c", KEY) is None


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "longer"])
def test_a_damaged_entry_is_absent_and_can_be_made_again(store: DiskStore, damage: str) -> None:
    contents = bytes(range(256)) * 40
    path = store.put("c", KEY, contents)
    flipped = bytearray(contents)
    flipped[5000] ^= 4
    damaged = {
        "cut": contents[:-1],
        "empty": b"",
        "flip": bytes(flipped),
        "longer": contents + b"x",
    }
    path.write_bytes(damaged[damage])
    assert store.find("c", KEY) is None
    assert not path.exists()
    assert store.put("c", KEY, contents).read_bytes() == contents
    assert store.read("c", KEY) == contents


def test_writers_that_disagree_leave_an_intact_entry(store: DiskStore) -> None:
    first, second = store.put("c", KEY, b"first"), store.put("c", KEY, b"second")
    assert store.read("c", KEY) in (b"first", b"second")
    first.write_bytes(b"damaged")
    assert store.read("c", KEY) == b"second"
    assert store.find("c", KEY) == second


def start_writer(folder: Path, size: int) -> int:
    """Return the process id of a writer that goes on until it is killed."""
    process = os.fork()
    if process:
        return process
    try:
        writer = DiskStore(folder, LARGE)
        while True:
            for index in range(16):
                writer.put("c", f"{index:02x}" * 32, b"x" * size)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def stop(*processes: int) -> None:
    """Kill writers; they must have been there still."""
    for process in processes:
        os.kill(process, signal.SIGKILL)
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    assert statuses == [signal.SIGKILL] * len(processes)


def test_a_writer_may_be_killed_at_any_time(store: DiskStore) -> None:
    size = 1 << 22
    for turn in range(12):
        process = start_writer(store.folder, size)
        time.sleep(0.02 + 0.003 * turn)
        stop(process)
        sizes = {entry.size for entry in store.entries() if entry.key}
        assert sizes <= {size}  # whole or not there
        for entry in store.entries():
            if entry.key:
                assert store.read("c", entry.key) == b"x" * size
    assert store.put("c", KEY, b"more").read_bytes() == b"more"
    left = store.folder / "unfinished" / "left"
    left.write_bytes(b"half")
    assert store.trim() == 0  # it may be another writer's
    old = time.time() - 7200
    os.utime(left, (old, old))
    assert store.trim() >= 1
    assert not left.exists()


def test_two_processes_write_the_same_entries_while_a_third_clears(store: DiskStore) -> None:
    writers = [start_writer(store.folder, 20_000) for _ in range(2)]
    try:
        seen = 0
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for index in range(16):
                contents = store.read("c", f"{index:02x}" * 32)
                assert contents is None or contents == b"x" * 20_000
                seen += contents is not None
            store.clear()
        assert seen
    finally:
        stop(*writers)


def test_threads_share_a_store(store: DiskStore) -> None:
    def work(number: int) -> None:
        for index in range(40):
            store.put("c", key_of(f"{number} {index % 7}"), b"y" * 1000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(store.entries())) == 28


def test_what_was_unused_for_longest_goes_first(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10_000)
    keys = [key_of(str(index)) for index in range(9)]
    now = time.time()
    for age, key in enumerate(keys):
        path = store.put("c", key, b"z" * 1000)
        os.utime(path, (now - 1000 + age, now - 1000 + age))
    assert store.find("c", keys[0]) is not None  # which makes it the youngest
    store.put("c", key_of("big"), b"z" * 3000)
    kept = [key for key in keys if store.find("c", key) is not None]
    assert kept == [keys[0], *keys[5:]]
    assert store.find("c", key_of("big")) is not None
    assert sum(entry.size for entry in store.entries()) <= 8000


def test_an_entry_larger_than_the_limit_stays_until_the_next(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 100)
    assert store.put("c", KEY, b"w" * 1000).read_bytes() == b"w" * 1000
    store.put("c", key_of("two"), b"small")
    assert store.find("c", KEY) is None
    assert store.find("c", key_of("two")) is not None


def test_a_mapped_file_may_be_evicted(store: DiskStore) -> None:
    path = store.put("c", KEY, b"v" * 10_000)
    with path.open("rb") as file:
        assert store.trim(0) == 1
        assert file.read() == b"v" * 10_000
    assert store.find("c", KEY) is None


def unusable(tmp_path: Path) -> Path:
    """Return a folder that cannot be made, not even by root: there is a file in the way."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_a_folder_that_cannot_be_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = Settings(cache_dir=str(unusable(tmp_path)))
    with pytest.warns(RuntimeWarning, match="cannot be used .* caching in"):
        store = open_store(settings)
    assert store is not None
    assert store.folder.parent == tmp_path
    assert store.folder.stat().st_mode & 0o077 == 0
    assert open_store(settings) is store  # and no second warning


def test_a_temporary_folder_of_somebody_else_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"lynx-cache-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        store = open_store(Settings(cache_dir=str(unusable(tmp_path)), cache_size=7))
    assert store is not None
    assert store.folder != theirs


def test_without_any_folder_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = unusable(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(nowhere))
    with pytest.warns(RuntimeWarning, match="nothing is cached on disk"):
        assert open_store(Settings(cache_dir=str(nowhere))) is None


def test_a_full_disk_moves_new_entries_elsewhere(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = store.put("c", KEY, b"before")
    write_bytes = Path.write_bytes

    def fail(path: Path, contents: bytes) -> int:
        if path.is_relative_to(store.folder):
            write_bytes(path, contents[: len(contents) // 2])
            raise OSError(28, "No space left on device")
        return write_bytes(path, contents)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.warns(RuntimeWarning, match="takes no more .No space left"):
        after = store.put("c", key_of("two"), b"after")
    assert after.read_bytes() == b"after"
    assert store.find("c", KEY) == before
    assert store.find("c", key_of("two")) == after
    assert not list((store.folder / "unfinished").iterdir())


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_store(read_settings(environment={"LYNX_CACHE": "0"})) is None
    store = open_store(read_settings({"cache": True, "cache_dir": str(tmp_path), "cache_size": 3}))
    assert store is not None
    assert (store.folder, store.max_bytes) == (tmp_path, 3 << 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Settings().cache_folder == str(tmp_path / "xdg" / "lynx")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Path(Settings().cache_folder).is_relative_to(tmp_path)


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LYNX_CACHE_DIR", str(tmp_path / "cache"))
    store = DiskStore(tmp_path / "cache", LARGE)
    store.put("c", KEY, b"a" * 2048)
    store.put("graph", KEY, b"b" * 1024)
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path / 'cache'}\n" in shown
    assert "2.0 KiB" in shown
    assert "3.0 KiB  of at most 2.0 GiB" in shown
    assert main(["cache", "--path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'cache'}\n"
    assert main(["cache", "--limit", "1"]) == 0
    assert "removed 0 entries" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert list(store.entries()) == []
    assert main(["cache", "--limit", "-1"]) == 1
    monkeypatch.setenv("LYNX_CACHE_DIR", str(unusable(tmp_path)))
    assert main(["cache"]) == 1
    assert "cannot use the cache" in capsys.readouterr().err


def test_the_table_of_an_empty_cache(store: DiskStore) -> None:
    assert "all                 0          0 B" in describe_cache(store)
    assert lynx.cache.digest(b"") == lynx.cache.digest(b"")
