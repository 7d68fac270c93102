"""The cache on disk: compiled artifacts under a content hash, shared by processes.

An entry is one file, `<folder>/<kind>/<first two digits of the key>/<key>.<digest>`, written under
another name and then renamed: it is there whole or not at all, whatever kills the writer. The
digest of its contents is part of its name, so that an entry cut short or changed on disk is noticed
when it is looked up, removed, and made again. No locks: processes that write one entry at the same
time write the same, and a file that another process removed is an entry that is not there.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lynx.passes.plan_memory import format_bytes

from .settings import Settings

MEBIBYTE = 1 << 20
_UNFINISHED = "unfinished"
_STALE_SECONDS = 3600.0
_FILL = 0.8
"""The part of the limit that is left after an eviction, so that not every entry evicts another."""

_PUTS_BETWEEN_SCANS = 256
_ATTEMPTS = 100
_ENTRY = re.compile(r"([0-9a-f]+)\.([0-9a-f]{32})")


@dataclass(frozen=True)
class Entry:
    """One entry on disk: what it is, its bytes, and when it was last used in seconds of the epoch.

    The key of an unfinished one is empty.
    """

    kind: str
    key: str
    path: Path
    size: int
    used: float


class DiskStore:
    """Entries in a folder, at most `max_bytes` of them; those unused for longest go first.

    The entry just written stays even if it alone is larger. Safe between threads and processes.
    `OSError` from the constructor if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self._size: int | None = None
        self._puts = 0
        self._lock = threading.Lock()
        self._overflow: DiskStore | None = None
        (self.folder / _UNFINISHED).mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(self.folder / _UNFINISHED, os.W_OK | os.X_OK):
            raise PermissionError(f"cannot write to {self.folder}")

    def find(self, kind: str, key: str) -> Path | None:
        """Return the file of an intact entry, None if there is none.

        Another process may evict the entry at any time; the file can be gone when it is opened.
        """
        found = self._intact(kind, key)
        return None if found is None else found[0]

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the contents of an intact entry, None if there is none."""
        found = self._intact(kind, key)
        return None if found is None else found[1]

    def put(self, kind: str, key: str, contents: bytes) -> Path:
        """Write an entry and return its file, also when another process was first.

        If the folder takes no more, the file lies in a temporary folder of this process.
        """
        try:
            path = self._put(kind, key, contents)
        except OSError as error:
            return self._elsewhere(error).put(kind, key, contents)
        self._limit(len(contents), path)
        return path

    def remove(self, kind: str, key: str) -> None:
        """Remove an entry that turned out to be of no use, if it is there."""
        for path, _ in self._files(kind, key):
            _unlink(path)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, unfinished ones included, in order of kind and name."""
        for kind in _names(self.folder):
            folder = self.folder / kind
            for path in self._paths(kind, folder):
                match = _ENTRY.fullmatch(path.name)
                if match is None and kind != _UNFINISHED:
                    continue
                with contextlib.suppress(OSError):
                    status = path.stat()
                    key = match[1] if match else ""
                    yield Entry(kind, key, path, status.st_size, status.st_mtime)

    def clear(self) -> int:
        """Remove all entries and return how many there were; others may go on writing."""
        count = self.trim(0)
        for kind in _names(self.folder):
            for part in _names(self.folder / kind):
                with contextlib.suppress(OSError):
                    (self.folder / kind / part).rmdir()
        with self._lock:
            self._size = None
        return count

    def trim(self, max_bytes: int | None = None, keep: Path | None = None) -> int:
        """Remove what was used least recently until the rest fits; return how many went.

        Files of writers that were killed go first. `keep` stays in any case.
        """
        limit = self.max_bytes if max_bytes is None else max_bytes
        entries = sorted(self.entries(), key=lambda entry: (entry.key != "", entry.used))
        size = sum(entry.size for entry in entries if entry.key)
        target = size if size <= limit else int(limit * _FILL)
        removed = 0
        now = time.time()
        for entry in entries:
            if not entry.key:
                removed += now - entry.used > _STALE_SECONDS and _unlink(entry.path)
            elif size > target and entry.path != keep:
                removed += _unlink(entry.path)
                size -= entry.size
        with self._lock:
            self._size = size
        return removed

    # files

    def _shard(self, kind: str, key: str) -> Path:
        assert re.fullmatch(r"[a-z0-9_-]+", kind), kind
        assert kind != _UNFINISHED, kind
        assert re.fullmatch(r"[0-9a-f]{8,}", key), key
        return self.folder / kind / key[:2]

    def _paths(self, kind: str, folder: Path) -> Iterator[Path]:
        shards = [""] if kind == _UNFINISHED else _names(folder)
        for shard in shards:
            for name in _names(folder / shard):
                yield folder / shard / name

    def _files(self, kind: str, key: str) -> Iterator[tuple[Path, str]]:
        """Yield the files of an entry with their digests: more than one if writers disagreed."""
        shard = self._shard(kind, key)
        for name in _names(shard):
            if name.startswith(key) and (match := _ENTRY.fullmatch(name)) and match[1] == key:
                yield shard / name, match[2]

    def _intact(self, kind: str, key: str) -> tuple[Path, bytes] | None:
        for path, expected in self._files(kind, key):
            try:
                contents = path.read_bytes()
            except OSError:
                continue
            if digest(contents) == expected:
                with contextlib.suppress(OSError):
                    os.utime(path)
                return path, contents
            _unlink(path)
        if self._overflow is not None:
            return self._overflow._intact(kind, key)
        return None

    def _put(self, kind: str, key: str, contents: bytes) -> Path:
        path = self._shard(kind, key) / f"{key}.{digest(contents)}"
        unfinished = self.folder / _UNFINISHED / uuid.uuid4().hex
        try:
            unfinished.write_bytes(contents)
            _move(unfinished, path)
        except OSError:
            _unlink(unfinished)
            raise
        return path

    def _limit(self, written: int, keep: Path) -> None:
        """Count what was written, and remove old entries when that is too much."""
        with self._lock:
            self._puts += 1
            known = self._size
            if known is not None:
                self._size = known = known + written
            is_due = self._puts % _PUTS_BETWEEN_SCANS == 0
        if known is None or known > self.max_bytes or is_due:
            self.trim(keep=keep)

    def _elsewhere(self, error: OSError) -> DiskStore:
        """Return a store in a temporary folder of this process, with one warning."""
        if self._overflow is None:
            _warn(f"the cache in {self.folder} takes no more ({_reason(error)})")
            self._overflow = private_store(self.max_bytes)
        return self._overflow


def digest(contents: bytes) -> str:
    """Return the digest of an entry's contents, 32 hexadecimal digits."""
    return hashlib.blake2b(contents, digest_size=16).hexdigest()


def private_store(max_bytes: int) -> DiskStore:
    """Return a store in a new temporary folder, which goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="lynx-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return DiskStore(folder, max_bytes)


def open_store(settings: Settings) -> DiskStore | None:
    """Return the store that the settings ask for, the same one for the same folder.

    None if caching is off, or if nothing on this machine can be written. Where the folder cannot be
    written it is one in the folder for temporary files, with one warning.
    """
    if not settings.cache:
        return None
    name = (settings.cache_folder, settings.cache_size)
    with _OPEN_LOCK:
        if name not in _OPEN:
            _OPEN[name] = _open(settings.cache_folder, settings.cache_size * MEBIBYTE)
        return _OPEN[name]


_OPEN: dict[tuple[str, int], DiskStore | None] = {}
_OPEN_LOCK = threading.Lock()


def _open(folder: str, max_bytes: int) -> DiskStore | None:
    try:
        return DiskStore(folder, max_bytes)
    except OSError as error:
        problem = f"the cache folder {folder} cannot be used ({_reason(error)})"
    try:
        store = _shared_temporary_store(max_bytes)
    except OSError:
        _warn(f"{problem}; nothing is cached on disk")
        return None
    _warn(f"{problem}; caching in {store.folder}")
    return store


def _shared_temporary_store(max_bytes: int) -> DiskStore:
    """Return a store in the folder for temporary files, for all processes of this user.

    What lies in the cache is run: a folder that somebody else may write to is not used.
    """
    user = os.getuid() if hasattr(os, "getuid") else ""
    folder = Path(tempfile.gettempdir()) / f"lynx-cache-{user}"
    folder.mkdir(exist_ok=True, mode=0o700)
    status = folder.lstat()
    is_ours = user == "" or (status.st_uid == user and not status.st_mode & 0o022)
    if stat.S_ISDIR(status.st_mode) and is_ours:
        return DiskStore(folder, max_bytes)
    return private_store(max_bytes)


def describe_cache(store: DiskStore) -> str:
    """Return a table of the entries by kind: how many, their size, and when one was last used."""
    kinds: dict[str, list[Entry]] = {}
    for entry in store.entries():
        kinds.setdefault(entry.kind, []).append(entry)
    lines = [f"{store.folder}", f"{'kind':<12}{'entries':>9}{'size':>13}  last used"]
    for kind, entries in kinds.items():
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(e.used for e in entries)))
        lines.append(f"{kind:<12}{len(entries):>9}{_size_of(entries):>13}  {used}")
    every = [entry for entries in kinds.values() for entry in entries]
    limit = format_bytes(store.max_bytes)
    lines.append(f"{'all':<12}{len(every):>9}{_size_of(every):>13}  of at most {limit}")
    return "\n".join(lines)


def _size_of(entries: list[Entry]) -> str:
    return format_bytes(sum(entry.size for entry in entries))


_WARNED: set[str] = set()


def _warn(message: str) -> None:
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(f"lynx: {message}", RuntimeWarning, stacklevel=4)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none if it is no folder or gone."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _move(source: Path, target: Path) -> None:
    """Give a file its final name, in a folder that others may remove whenever it is empty."""
    for attempt in range(_ATTEMPTS):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
            return
        except (FileNotFoundError, FileExistsError):
            if attempt + 1 == _ATTEMPTS or not source.exists():
                raise
        except PermissionError:  # Windows does not replace a file that is loaded
            if not target.exists():
                raise
            _unlink(source)
            return


def _unlink(path: Path) -> bool:
    """Remove a file; False if another process was first, or may not."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
