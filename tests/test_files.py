from __future__ import annotations

import contextlib
import errno
import gzip
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from hetero_la.io import formats, outputs
from hetero_la.io.files import read_matrix, require_writable, write_matrix
from hetero_la.scheduler.machine import atomic_files
from hetero_la.tiles.arrays.errors import InsufficientMemoryError


def with_library(suffix: str) -> object:
    library = formats.FORMATS[suffix].library
    missing = library is not None and importlib.util.find_spec(library) is None
    return pytest.param(suffix, marks=pytest.mark.skipif(missing, reason=f"needs {library}"))


ALL = [with_library(suffix) for suffix in formats.FORMATS]
SEVERAL = [with_library(s) for s, f in formats.FORMATS.items() if f.several]


def sample(dtype: str) -> np.ndarray:
    a = np.random.default_rng(0).standard_normal((5, 3)) * 1e3
    return a.astype(dtype) * (1 + 2j if np.dtype(dtype).kind == "c" else 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64"])
@pytest.mark.parametrize("suffix", ALL)
def test_what_is_written_is_read(tmp_path: Path, suffix: str, dtype: str) -> None:
    a = np.asfortranarray(sample(dtype), dtype=dtype)
    path = tmp_path / f"a{suffix}"
    write_matrix(path, a)
    back = read_matrix(path)
    # Text knows no single precision: the numbers are the same once they are rounded to it.
    assert np.array_equal(back.astype(dtype), a)
    assert back.dtype == a.dtype or suffix.startswith(".mtx")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", SEVERAL)
def test_several_arrays_are_told_apart_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    write_matrix(path, {"lu": np.eye(3), "piv": np.arange(3, dtype=np.int32)})
    assert np.array_equal(read_matrix(path, "piv"), [0, 1, 2])
    assert read_matrix(path, "piv").dtype == np.int32
    with pytest.raises(ValueError, match=r"f\.\w+: it holds 2 arrays \(lu, piv\): choose one"):
        read_matrix(path)
    with pytest.raises(ValueError, match="it has no array 'x'; it has lu, piv"):
        read_matrix(path, "x")


@pytest.mark.parametrize("suffix", ALL)
def test_an_older_file_is_replaced(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_matrix(path, np.zeros((4, 4)))
    write_matrix(path, np.ones((2, 2)))
    assert np.array_equal(read_matrix(path), np.ones((2, 2)))
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("suffix", ALL)
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, suffix: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{suffix}"
    write_matrix(path, np.eye(2))
    complete = formats.FORMATS[suffix]

    def break_off(unfinished: Path, arrays: formats.Arrays) -> None:
        complete.write(unfinished, arrays)
        raise error

    broken = formats.Format(complete.read, break_off, complete.several, complete.library)
    monkeypatch.setitem(formats.FORMATS, suffix, broken)
    with pytest.raises((KeyboardInterrupt, OSError)):
        write_matrix(path, np.zeros((3, 3)))
    assert os.listdir(tmp_path) == [path.name]
    assert np.array_equal(read_matrix(path), np.eye(2))


def test_an_abrupt_end_can_clean_up(tmp_path: Path) -> None:
    begun = outputs.replacing_file(tmp_path / "a.npy")
    begun.__enter__().write_bytes(b"begun")
    assert len(os.listdir(tmp_path)) == 1
    atomic_files.discard_unfinished()
    assert os.listdir(tmp_path) == []


def test_files_have_ordinary_permissions_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "link.npy").symlink_to("real.npy")
    write_matrix(tmp_path / "link.npy", np.eye(2))
    assert (tmp_path / "link.npy").is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "real.npy").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("suffix", [".npy", ".mtx.gz", ".h5", ".zarr"])
def test_what_is_replaced_keeps_its_mode_and_group(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip({".h5": "h5py", ".zarr": "zarr"}.get(suffix, "numpy"))
    path, group = tmp_path / f"a{suffix}", another_group()
    write_matrix(path, np.eye(2))
    for mode in (0o640, 0o755, 0o600):
        os.chown(path, -1, group)
        path.chmod(mode)
        write_matrix(path, np.ones((2, 2)))
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert path.stat().st_gid == group
    assert np.array_equal(read_matrix(path), np.ones((2, 2)))


def another_group() -> int:
    """A group that files of this process may have, and do not have by themselves."""
    if os.geteuid() == 0:
        return 12345
    return next((group for group in os.getgroups() if group != os.getegid()), os.getegid())


def test_a_group_that_cannot_be_kept_gives_nobody_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    write_matrix(tmp_path / "a.npy", np.eye(2))
    (tmp_path / "a.npy").chmod(0o664)
    monkeypatch.setattr(os, "chown", refuse)
    write_matrix(tmp_path / "a.npy", np.eye(2))
    assert stat.S_IMODE((tmp_path / "a.npy").stat().st_mode) == 0o644


def test_nobody_else_may_look_at_what_is_being_written(tmp_path: Path) -> None:
    with outputs.replacing_file(tmp_path / "a.npy") as begun:
        begun.write_bytes(b"secret")
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


BEGIN = """
import os, sys, time
from hetero_la.io import outputs
with outputs.replacing_file(outputs.Path(sys.argv[1])) as begun:
    begun.write_bytes(b"half")
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_has_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    argv = [sys.executable, "-c", BEGIN, str(path)]
    writers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    killed, alive = writers
    try:
        killed.kill()
        killed.wait()
        assert len(os.listdir(tmp_path)) == 2
        write_matrix(path, np.eye(2))
        left = set(os.listdir(tmp_path)) - {path.name}
        assert len(left) == 1  # two may write at once
        assert f"-{alive.pid}-" in left.pop()
    finally:
        alive.kill()
        alive.wait()
    write_matrix(tmp_path / "b.npy", np.eye(2))
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy"]


def test_what_another_host_writes_is_removed_after_a_day(tmp_path: Path) -> None:
    new, old = (tmp_path / f".hetero-la-00000000-1-0000000{i}.tmp" for i in range(2))
    mine = tmp_path / f".hetero-la-{atomic_files._host()}-{os.getpid()}-00000000.tmp"
    for folder in (new, old, mine):
        folder.mkdir()
    os.utime(old, (0, time.time() - 90_000))
    write_matrix(tmp_path / "a.npy", np.eye(2))
    assert sorted(os.listdir(tmp_path)) == [new.name, "a.npy"]


def test_a_store_is_there_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "a.zarr"
    write_matrix(path, np.eye(2))

    def watched(name: str) -> Callable[..., None]:
        move = getattr(os, name)

        def moved(*paths: Path) -> None:
            move(*paths)
            assert path.is_dir()

        return moved

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, watched(name))
    write_matrix(path, np.ones((3, 3)))
    assert np.array_equal(read_matrix(path), np.ones((3, 3)))
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_a_store_is_put_back_after_a_kill_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "a.zarr"
    write_matrix(path, np.eye(2))
    program = (
        "import os, signal, sys\n"
        "from hetero_la.io.files import write_matrix\n"
        "from hetero_la.scheduler.machine import atomic_files\n"
        "atomic_files._exchanged = lambda *_: False\n"
        "rename = os.rename\n"
        "def killed(*paths):\n"
        "    rename(*paths)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.rename = killed\n"
        "import numpy\n"
        "write_matrix(sys.argv[1], numpy.eye(1))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert not path.exists()
    write_matrix(tmp_path / "b.npy", np.eye(3))
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.npy"]
    assert np.array_equal(read_matrix(path), np.eye(2))
    monkeypatch.setattr(atomic_files, "_exchanged", lambda *_: False)
    write_matrix(path, np.ones((3, 3)))
    assert np.array_equal(read_matrix(path), np.ones((3, 3)))
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.npy"]


@pytest.mark.parametrize("compress", [False, True])
def test_matrix_market_coordinates_become_dense(tmp_path: Path, compress: bool) -> None:
    dense = np.array([[4.0, 1, 0], [1, 0, 2], [0, 2, 5]])
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, scipy.sparse.coo_array(dense), symmetry="symmetric")
    if compress:
        packed = tmp_path / "a.mtx.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    assert np.array_equal(read_matrix(path), dense)


def test_a_vector_in_matrix_market_is_a_column(tmp_path: Path) -> None:
    write_matrix(tmp_path / "b.mtx", np.arange(3.0))
    assert read_matrix(tmp_path / "b.mtx").tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("suffix", ALL)
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"none{suffix}"
    with pytest.raises((OSError, ValueError)) as caught:
        read_matrix(path)
    assert str(caught.value).startswith(f"cannot read {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ALL)
@pytest.mark.parametrize("content", [b"", b"not a matrix\n" * 5])
def test_a_file_with_something_else_in_it_is_named(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises((OSError, ValueError)) as caught:
        read_matrix(path)
    message = str(caught.value)
    assert message.startswith(f"cannot read {path}: ")
    assert len(message) > len(f"cannot read {path}: ") + 5
    assert "\n" not in message


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".mtx.gz"])
def test_a_file_cut_short_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut{suffix}"
    write_matrix(path, sample("float64"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises((OSError, ValueError), match=f"cannot read {path}: "):
        read_matrix(path)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"cannot read .*Object arrays cannot be loaded"):
        read_matrix(tmp_path / "o.npy")


def test_text_is_refused_as_a_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array(["a", "b"]))
    with pytest.raises(ValueError, match="its dtype is <U1, not a number"):
        read_matrix(tmp_path / "t.npy")
    with pytest.raises(ValueError, match="dtype of 'a' is <U1"):
        write_matrix(tmp_path / "u.npy", np.array(["a", "b"]))
    assert os.listdir(tmp_path) == ["t.npy"]


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.txt: its suffix is none of \.npy, \.npz, .*\.zarr"):
        read_matrix(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="its suffix is none of"):
        require_writable(tmp_path / "a.txt")


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot hold 2 arrays, which \.npz, .* can"):
        require_writable(tmp_path / "a.npy", arrays=2)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        require_writable(tmp_path / "none" / "a.npy")
    (tmp_path / "d.npy").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        require_writable(tmp_path / "d.npy")


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_never_replaced(tmp_path: Path, linked: bool) -> None:
    path = tmp_path / "a.npy"
    pipe = tmp_path / "pipe" if linked else path
    os.mkfifo(pipe)
    if linked:
        path.symlink_to(pipe)
    sentence = f"cannot write {path}: it is not a regular file"
    with pytest.raises(OSError, match=sentence):
        require_writable(path)
    with pytest.raises(OSError, match=sentence), outputs.replacing_file(path):
        pytest.fail("it must be refused before anything is written")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert len(os.listdir(tmp_path)) == 1 + linked


def test_a_file_never_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with (
        pytest.raises(IsADirectoryError, match="it is a folder"),
        outputs.replacing_file(tmp_path / "d") as begun,
    ):
        begun.write_text("a file")
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.skipif(importlib.util.find_spec("zarr") is None, reason="needs zarr")
def test_a_folder_that_is_no_store_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr" / "thesis.txt").write_text("years")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_matrix(tmp_path / "mine.zarr", np.eye(2))
    assert (tmp_path / "mine.zarr" / "thesis.txt").read_text() == "years"


def test_a_missing_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ValueError, match=r"the h5py library is missing .*hetero-la\[files\]"):
        write_matrix(tmp_path / "a.h5", np.eye(2))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", ALL)
def test_a_matrix_larger_than_memory_is_not_begun(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{suffix}"
    write_matrix(path, np.ones((100, 100)))
    monkeypatch.setattr(formats, "available_memory", lambda: 50_000)
    with pytest.raises(InsufficientMemoryError, match=f"cannot read {path}: .* needs 80"):
        read_matrix(path)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_store_is_put_back_if_it_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "a.zarr"
    write_matrix(path, np.eye(2))
    rename, calls = os.rename, []

    def broken(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", broken)
    monkeypatch.setattr(atomic_files, "_exchanged", lambda *_: False)
    with pytest.raises(OSError, match=r"cannot write .*a\.zarr: Input/output error"):
        write_matrix(path, np.zeros((3, 3)))
    assert os.listdir(tmp_path) == ["a.zarr"]
    assert np.array_equal(read_matrix(path), np.eye(2))


def test_a_folder_that_comes_back_is_removed_again(tmp_path: Path) -> None:
    def write_on() -> None:
        for _ in range(20):
            with contextlib.suppress(FileNotFoundError):  # removed while it is being made
                (begun / "c" / "0").mkdir(parents=True, exist_ok=True)
            time.sleep(0.005)

    thread = threading.Thread(target=write_on)
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        outputs.replacing_file(tmp_path / "a.zarr") as begun,
    ):
        begun.mkdir()
        thread.start()
        raise KeyboardInterrupt
    thread.join()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", ALL)
def test_memory_that_runs_out_is_said_of_the_file(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    chosen = formats.FORMATS[suffix]
    broken = formats.Format(exhausted, chosen.write, chosen.several, chosen.library)
    monkeypatch.setitem(formats.FORMATS, suffix, broken)
    path = tmp_path / f"a{suffix}"
    with pytest.raises(InsufficientMemoryError, match=f"cannot read {path}: memory is exhausted"):
        read_matrix(path)


def test_an_empty_array_and_newer_headers_are_read(tmp_path: Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        for array in (np.zeros((0, 3)), np.eye(2)):
            with open(tmp_path / "a.npy", "wb") as file:
                np.lib.format.write_array(file, array, version=version)
            assert np.array_equal(read_matrix(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("name", ["a.npy", "a.mtx", "a.mtx.gz"])
def test_a_name_for_what_has_none_is_refused(tmp_path: Path, name: str) -> None:
    write_matrix(tmp_path / name, np.eye(2))
    with pytest.raises(ValueError, match=f"{name}: it holds one array, which has no name"):
        read_matrix(tmp_path / name, "a")


@pytest.mark.skipif(importlib.util.find_spec("zarr") is None, reason="needs zarr")
@pytest.mark.parametrize("shape", [(), (0,), (7,), (0, 4), (3000, 40), (3, 4, 5)])
def test_stores_hold_arrays_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    write_matrix(tmp_path / "a.zarr", array)
    assert np.array_equal(read_matrix(tmp_path / "a.zarr"), array)
