"""Atomic writes: files and folders that appear under their names complete, or not at all.

They are written in a private folder beside their final path and are moved there in one step.  The
folder's name holds the host and process that made it, so that the next write beside it can remove
what a killed process has left.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import re
import shutil
import stat
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

#: Folders of this process's unfinished writes.
_begun: set[Path] = set()

#: Name of such a folder: host, process and a random number.
_NAME = re.compile(r"\.hetero-la-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.tmp")

#: Its subfolder for a folder being replaced, on a file system that cannot exchange two folders.
_OLD = ".replaced"

#: Age in seconds from which a folder of another host is taken as left behind.
_ABANDONED = 86_400

#: Seconds for which a library's threads may still write after Ctrl-C, and between two checks.
_STRAGGLER_SECONDS, _CHECK_SECONDS = 2.0, 0.05

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux


def require_replaceable(path: Path) -> None:
    """Raise OSError if `path` is a pipe or a device, which a write would destroy."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError("it is not a regular file")


@contextlib.contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield a path of the same name, which replaces `path` if the block ends without an error.

    What was there stays until then, and its mode and group remain.  A link stays, and what it
    points to is replaced.

    Raises
    ------
    OSError
        If a pipe or a device is there, if a file is to replace a folder, or if the system does
        not let it be done.
    """
    target = path.resolve()
    _remove_abandoned(target.parent)
    folder = target.parent / f".hetero-la-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
    _begun.add(folder)
    try:
        require_replaceable(target)
        folder.mkdir(mode=0o700)
        yield folder / target.name
        _move_into_place(folder / target.name, target)
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        _discard(folder)
        raise
    finally:
        _begun.discard(folder)


def discard_unfinished() -> None:
    """Remove the folders of unfinished writes, for a process that exits at once."""
    for folder in list(_begun):
        _discard(folder)


def _move_into_place(new: Path, target: Path) -> None:
    """Replace `target` by `new`."""
    if target.is_dir() and not new.is_dir():
        raise IsADirectoryError("it is a folder")
    if target.exists():
        _keep_rights(target, new)
    if not new.is_dir() or not target.exists():
        os.replace(new, target)
    elif not _exchanged(new, target):
        old = new.with_name(_OLD)
        old.mkdir()
        os.rename(target, old / target.name)
        os.rename(new, target)


def _keep_rights(old: Path, new: Path) -> None:
    """Give `new` the mode and, as far as that is allowed, the owner and the group of `old`."""
    there = old.stat()
    mode = stat.S_IMODE(there.st_mode)
    for owner in (there.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.chown(new, owner, there.st_gid)
            break
    else:  # the group could not be kept: members of the new one get the rights of others
        mode = mode & ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    with contextlib.suppress(PermissionError):  # some file systems know no modes
        os.chmod(new, mode)


def _exchanged(new: Path, target: Path) -> bool:
    """Return whether two paths were exchanged in one step, which not every file system can do."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    paths = _AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(target)
    if renameat2(*paths, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


@functools.cache
def _host() -> str:
    """Return an identifier of the host, or container, within which process numbers are unique."""
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbers = ""
    return f"{zlib.crc32((platform.node() + numbers).encode()):08x}"


def _remove_abandoned(parent: Path) -> None:
    """Remove what killed processes have left in `parent`."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(parent)):
            found, folder = _NAME.fullmatch(entry.name), parent / entry.name
            if found and folder not in _begun and _is_abandoned(entry, found[1], int(found[2])):
                _put_back(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(entry: os.DirEntry[str], host: str, pid: int) -> bool:
    """Return whether the process that made a folder has ended."""
    if host == _host():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # a process of another user
            pass
        return pid == os.getpid()  # not in _begun: an earlier process had the same number
    return time.time() - entry.stat().st_mtime > _ABANDONED


def _discard(folder: Path) -> None:
    """Remove an unfinished write, though threads of a library may still write in it for a while."""
    _put_back(folder)
    deadline = time.monotonic() + _STRAGGLER_SECONDS
    while folder.is_dir() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_CHECK_SECONDS)  # a thread may create it again


def _put_back(folder: Path) -> None:
    """Put back what was to be replaced, if nothing has taken its place."""
    for old in (folder / _OLD).glob("*"):
        if not (folder.parent / old.name).exists():
            os.rename(old, folder.parent / old.name)
