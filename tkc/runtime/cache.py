"""The disk cache: one file an entry, named by the hash of everything the entry depends on.

    8 bytes "tkc-cch1" | 32 bytes SHA-256 of the rest | 4 bytes length of the index | index (JSON) |
    parts
The index says {"key": …, "parts": [[name, bytes], …]}. An entry is written to a file beside it and
renamed, so a reader sees all of it or none; what does not hash right is no entry and is unlinked.
Nothing is locked, nothing is pickled. A directory that others could write is refused: compilation
then goes on without a cache, after one warning.

TKC_CACHE_DIR says where (default ~/.cache/tkc); TKC_CACHE=0 turns it off; TKC_CACHE_SIZE caps it,
in MiB (default 512).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import warnings
from pathlib import Path

from tkc.errors import CacheError

MAGIC = b"tkc-cch1"
SUFFIX = ".tkc"


class DiskCache:
    """Entries below one directory. `get` and `put` never raise; `check` says why the directory
    cannot be used.
    """

    def __init__(self, root: Path, megabytes: int = 512):
        self.root, self.limit, self._refused = root, megabytes << 20, False

    def check(self) -> None:
        """Makes the directory if need be. Raises CacheError if it is not ours alone."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(self.root)
        except OSError as e:
            raise CacheError(
                f"cannot make the cache directory {self.root}: {e.strerror}; set TKC_CACHE_DIR to"
                " one you own, or TKC_CACHE=0"
            ) from None
        if not stat.S_ISDIR(found.st_mode):
            raise CacheError(
                f"the cache directory {self.root} is a link or a file; set TKC_CACHE_DIR to a"
                " directory of your own"
            )
        if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
            raise CacheError(
                f"the cache directory {self.root} belongs to another user; set TKC_CACHE_DIR to one"
                " of your own"
            )
        if os.name == "posix" and found.st_mode & 0o022:
            raise CacheError(
                f"the cache directory {self.root} can be written by others; chmod 700 it, or set"
                " TKC_CACHE_DIR"
            )

    def _usable(self) -> bool:
        if self._refused:
            return False
        try:
            self.check()
        except CacheError as e:
            self._refused = True
            warnings.warn(f"{e} (compiling without a cache)", RuntimeWarning, stacklevel=4)
            return False
        return True

    def path(self, key: str) -> Path:
        return self.root / key[:2] / (key + SUFFIX)

    def get(self, key: str) -> dict[str, bytes] | None:
        """The parts of an entry, or None."""
        if not self._usable():
            return None
        path = self.path(key)
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as f:
                data = f.read()
        except OSError:
            return None
        parts = _unpack(data, key)
        with contextlib.suppress(OSError):
            os.unlink(path) if parts is None else os.utime(path)
        return parts

    def put(self, key: str, parts: dict[str, bytes]) -> None:
        if not self._usable():
            return
        path = self.path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, _pack(key, parts))
        except OSError:
            return  # full, read-only, gone: the cache is a convenience
        self._trim(path.parent)

    def _trim(self, folder: Path) -> None:
        """Drops the longest unused entries of one of the 256 folders once it holds more than its
        share.
        """
        try:
            entries = sorted(
                ((s := e.stat()).st_mtime, s.st_size, e.path) for e in os.scandir(folder)
            )
        except OSError:
            return
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries[:-1]:
            if total <= max(self.limit // 256, 1 << 20):
                break
            try:
                os.unlink(path)
            except OSError:
                continue
            total -= size


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """A file that is there whole or not at all, whatever reads it or ends meanwhile (but a machine
    that loses its power: entries carry a hash). Raises OSError.
    """
    handle, new = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        if mode != 0o600:
            os.chmod(new, mode)
        os.replace(new, path)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise


def _pack(key: str, parts: dict[str, bytes]) -> bytes:
    index = json.dumps(
        {"key": key, "parts": [[name, len(data)] for name, data in parts.items()]}
    ).encode()
    rest = len(index).to_bytes(4, "little") + index + b"".join(parts.values())
    return MAGIC + hashlib.sha256(rest).digest() + rest


def _unpack(data: bytes, key: str) -> dict[str, bytes] | None:
    head = len(MAGIC) + 32
    if (
        data[: len(MAGIC)] != MAGIC
        or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]
    ):
        return None
    at = head + 4 + int.from_bytes(data[head : head + 4], "little")
    try:
        index = json.loads(data[head + 4 : at])
    except ValueError:
        return None
    if index["key"] != key:
        return None
    parts = {}
    for name, size in index["parts"]:
        parts[name] = data[at : at + size]
        at += size
    return parts


def write_entry(path: Path, key: str, parts: dict[str, bytes]) -> None:
    """One file in the form of an entry, anywhere: whole or not at all. Raises CacheError where it
    cannot be written.
    """
    try:
        write_whole(path, _pack(key, parts))
    except OSError as e:
        raise CacheError(f"{path} cannot be written: {e.strerror}") from None


def read_entry(path: Path, key: str) -> dict[str, bytes] | None:
    """The parts of such a file; None where it is something else. Raises CacheError where it cannot
    be read.
    """
    try:
        return _unpack(path.read_bytes(), key)
    except OSError as e:
        raise CacheError(f"{path} cannot be read: {e.strerror}") from None


_caches: dict[tuple[str, str], DiskCache] = {}


def disk() -> DiskCache | None:
    """The cache that the environment names, None where it is turned off."""
    if os.environ.get("TKC_CACHE") == "0":
        return None
    where, size = (
        os.environ.get("TKC_CACHE_DIR")
        or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tkc"),
        os.environ.get("TKC_CACHE_SIZE", "512"),
    )
    if (where, size) not in _caches:
        if not size.isdigit():
            warnings.warn(
                f"TKC_CACHE_SIZE is a number of MiB, got {size!r}: 512 are used", RuntimeWarning, 2
            )
        _caches[where, size] = DiskCache(Path(where), int(size) if size.isdigit() else 512)
    return _caches[where, size]
