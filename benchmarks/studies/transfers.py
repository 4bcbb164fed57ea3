"""Transfers between a host's memory and GPUs, and between GPUs: time = alpha + bytes / beta.

Of a copy that is waited for before the next, alpha is all that it takes to ask for it and to learn
of its end.  Copies in a row, which are enqueued without waiting, hide most of that: they are
measured under names of their own.  The same memory is copied again and again, so that small copies
within the host, or within a GPU, are from cache to cache.

Beside copies stand what they are not to be confused with: allocation, and the first touch of
memory that nobody has written to, each with the time to give the memory back.  Last come the
seconds per byte of the way up, of work, and of the way down, which say how much work a matrix must
be worth to be moved.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.cli.main import main
from hetero_la.scheduler.probe.copies import fit_link
from hetero_la.studies.common.columns import BYTES, SECONDS, WORD, percent, rate
from hetero_la.studies.common.plots import finish, heat_map, line, panels
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.common.timing import (
    Call,
    Clock,
    gpu_clock,
    host_clock,
    samples,
    spread,
    synchronous_clock,
)
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds, in_units
from hetero_la.tiles.arrays.transfer import copy_columns, enable_peers, pinned_empty, to_host

#: What follows the name of copies that are enqueued one after the other.
IN_A_ROW = ", in a row"
TOUCH = "allocate on the host and touch new pages"
UP, DOWN = "up", "down"


def _written(array: np.ndarray) -> np.ndarray:
    array[...] = 1
    return array


def _touch(nbytes: int) -> None:
    """Write to memory that is new to the process."""
    np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)[...] = 1


def cpu_copies(nbytes: int) -> dict[str, tuple[Call, Clock]]:
    """Return copies within the host's memory, and what its allocation costs, with their clock."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    calls: dict[str, Call] = {
        "host to host": lambda: np.copyto(target, source),
        "allocate on the host": lambda: np.empty(nbytes, np.uint8),
        "allocate on the host, new pages": lambda: mmap.mmap(-1, nbytes).close(),
        TOUCH: lambda: _touch(nbytes),
    }
    return {what: (call, host_clock) for what, call in calls.items()}


def enqueued(target: Any, source: Any) -> Call:
    """Return what enqueues a copy between arrays of bytes on the current stream."""
    import cupy

    to, given = (a.ctypes.data if isinstance(a, np.ndarray) else a.data.ptr
                 for a in (target, source))  # fmt: skip
    stream = cupy.cuda.get_current_stream().ptr
    return functools.partial(_enqueue, to, given, target.nbytes, stream, (target, source))


def _enqueue(to: int, given: int, nbytes: int, stream: int, kept: Any) -> None:
    """Enqueue a copy between two addresses; the arrays are kept as long as somebody may call."""
    copy_columns(to, nbytes, given, nbytes, nbytes, 1, stream)


def check_copy(what: str, call: Call, target: Any, source: Any) -> None:
    """Raise unless a call, and the wait for the current GPU, copies the source to the target."""
    target[...], source[...] = 0, 0
    source[::2] = 7
    call()
    if not isinstance(target, np.ndarray):
        target.device.synchronize()
    elif not isinstance(source, np.ndarray):
        source.device.synchronize()
    if not np.array_equal(to_host(target), to_host(source)):
        raise AssertionError(f"the copy {what} does not give what was copied")


def gpu_copies(nbytes: int) -> dict[str, tuple[Call, Clock]]:
    """Return copies between the host and the current GPU, and within it, each with its clock."""
    import cupy

    device, other = (cupy.ones(nbytes, cupy.uint8) for _ in range(2))
    pinned = _written(pinned_empty((nbytes,), np.uint8))
    pageable = np.ones(nbytes, np.uint8)
    found: dict[str, tuple[Call, Clock]] = {}
    for what, target, source in (
        ("host to GPU, pinned", device, pinned), ("GPU to host, pinned", pinned, device),
        ("host to GPU, pageable", device, pageable), ("GPU to host, pageable", pageable, device),
        ("within the GPU", other, device),
    ):  # fmt: skip
        call = enqueued(target, source)
        check_copy(what, call, target, source)
        found[what] = call, synchronous_clock
        if "pageable" not in what:  # of which the driver makes the host wait anyway
            found[what + IN_A_ROW] = call, gpu_clock
    return found


def gpu_allocations(nbytes: int) -> dict[str, tuple[Call, Clock]]:
    """Return what allocates memory for copies to the current GPU, and gives it back."""
    import cupy

    runtime, pool = cupy.cuda.runtime, cupy.get_default_memory_pool()
    calls: dict[str, Call] = {
        "allocate on the host, pinned": lambda: cupy.cuda.PinnedMemory(nbytes),
        "allocate on the GPU": lambda: runtime.free(runtime.malloc(nbytes)),
        "allocate by CuPy's pool": lambda: pool.malloc(nbytes),
    }
    return {what: (call, host_clock) for what, call in calls.items()}


def _timed(what: str, nbytes: int, call: Call, clock: Clock) -> Row:
    found = spread(samples(call, clock))
    row = {"table": "times", "what": what, "bytes": nbytes, **found}
    return row if _is_allocation(what) else {**row, "bytes/s": nbytes / found["seconds"]}


def _is_allocation(what: str) -> bool:
    return what.startswith("allocate")


def measure(run: StudyRun) -> Iterator[Row]:
    """Time copies of each size, fit alpha and beta, and then several GPUs."""
    rows = []
    for nbytes in run.sizes["bytes"]:
        run.report(f"copies of {in_bytes(nbytes)}")
        copies = cpu_copies(nbytes)
        if run.gpus:
            copies |= gpu_copies(nbytes) | gpu_allocations(nbytes)
        rows += [_timed(what, nbytes, *how) for what, how in copies.items()]
    yield from rows
    for what in values_of(rows, "what"):
        if not _is_allocation(what):
            yield _fitted(what, rows_of(rows, "times", what=what))
    if run.has_gpus(1, "copies to and from a GPU"):
        yield from _worth_moving(run.sizes["order"])
        yield from _slots()
    if run.has_gpus(2, "several GPUs at once, and copies between GPUs"):
        yield from _between_gpus(run)


def slot(address: str, devices: Path = Path("/sys/bus/pci/devices")) -> Row | None:
    """Return the PCI Express slot of a GPU: lanes in use, lanes that there are, most bytes/s.

    None where the system does not say.
    """
    try:
        lanes, most, speed = (
            float((devices / address.lower() / name).read_text().split()[0])
            for name in ("current_link_width", "max_link_width", "max_link_speed")
        )
    except (OSError, ValueError, IndexError):
        return None
    # A transfer is a bit on each lane.
    most_bytes = 1e9 * speed * most / 8
    return {"table": "slot", "lanes": int(lanes), "most lanes": int(most), "bytes/s": most_bytes}


def _fitted(what: str, rows: Rows) -> Row:
    """Return the row of the model, with the worst error of its fit."""
    link = fit_link([row["bytes"] for row in rows], [row["seconds"] for row in rows])
    errors = [abs(link.seconds(row["bytes"]) / row["seconds"] - 1) for row in rows]
    return {
        "table": "fit", "what": what, "alpha": link.latency, "beta": link.bandwidth,
        "worst error": max(errors),
    }  # fmt: skip


def _slots() -> Iterator[Row]:
    """Yield the slot of the current GPU, if it is known."""
    import cupy

    if (found := slot(cupy.cuda.Device().pci_bus_id)) is not None:
        yield found


def _worth_moving(n: int) -> Iterator[Row]:
    """Yield what a matrix's bytes cost: up, as the operand of a product or a sum, and down."""
    import cupy

    host = _written(pinned_empty((n, n), np.float64))
    a = cupy.asarray(host)
    b, c = cupy.ones_like(a), cupy.empty_like(a)
    up, down = (enqueued(to, given) for to, given in ((a, host), (host, a)))
    work: dict[str, Call] = {
        UP: up,
        "sum of two": lambda: cupy.add(a, b, out=c),
        "product of two": lambda: cupy.matmul(a, b, out=c),
        DOWN: down,
    }
    for what, call in work.items():
        found = spread(samples(call, gpu_clock))
        each = found["seconds"] / a.nbytes
        yield {"table": "worth", "what": what, "n": n, **found, "per byte": each}


def _between_gpus(run: StudyRun) -> Iterator[Row]:
    """Yield rates of all pairs of GPUs, and of all GPUs that copy from or to the host at once."""
    import cupy

    nbytes = run.sizes["bytes"][-1]
    arrays, hosts = [], []
    for g in range(run.gpus):
        with cupy.cuda.Device(g):
            arrays.append(cupy.ones(nbytes, cupy.uint8))
            hosts.append(_written(pinned_empty((nbytes,), np.uint8)))
    for i, j in itertools.permutations(range(run.gpus), 2):
        enable_peers(i, j)
        run.report(f"GPU {i} to GPU {j}")
        yield _pair(arrays[i], arrays[j])
    for way, together in itertools.product((UP, DOWN), range(1, run.gpus + 1)):
        pairs = list(zip(arrays[:together], hosts, strict=False))
        found = spread(samples(functools.partial(_all_at_once, pairs, way)))
        speed = together * nbytes / found["seconds"]
        yield {"table": "together", "way": way, "GPUs": together, **found, "bytes/s": speed}


def _pair(source: Any, target: Any) -> Row:
    """Return the row of copies in a row from one GPU to another."""
    import cupy

    i, j = source.device.id, target.device.id
    with target.device:
        stream = cupy.cuda.get_current_stream()
        copy = functools.partial(
            cupy.cuda.runtime.memcpyPeerAsync,
            target.data.ptr, j, source.data.ptr, i, source.nbytes, stream.ptr,
        )  # fmt: skip
        with source.device:
            source[...] = 2 + i
            source.device.synchronize()
        copy()
        if int(abs(target - (2 + i)).max()):
            raise AssertionError(f"the copy from GPU {i} to GPU {j} does not give what was copied")
        found = spread(samples(copy, gpu_clock))
    return {
        "table": "pairs",
        "from": i,
        "to": j,
        **found,
        "bytes/s": source.nbytes / found["seconds"],
    }


def _all_at_once(pairs: list[tuple[Any, np.ndarray]], way: str) -> None:
    """Copy between pairs of an array on a GPU and one on the host at once, and wait for all."""
    for array, host in pairs:
        with array.device:
            enqueued(*((array, host) if way == UP else (host, array)))()
    for array, _ in pairs:
        with array.device:
            array.device.synchronize()


def find(rows: Rows) -> list[str]:
    """Say what the links are, and how much work makes up for a transfer."""
    wanted = ("host to GPU, pinned", "GPU to host, pinned", "host to GPU, pageable",
              "GPU to host, pageable", "host to host")  # fmt: skip
    found = [_of_link(rows, row) for what in wanted for row in rows_of(rows, "fit", what=what)]
    if touched := rows_of(rows, "times", what=TOUCH):
        row = max(touched, key=lambda row: row["bytes"])
        speed = in_units(row["bytes"] / row["seconds"], "B/s")
        found.append(f"New pages on the host are allocated, touched and given back at {speed}.")
    work = {row["what"]: row for row in rows_of(rows, "worth")}
    if work:
        moved = work[UP]["seconds"] + work[DOWN]["seconds"]
        sums, products = (moved / work[f"{what} of two"]["seconds"] for what in ("sum", "product"))
        found.append(
            f"To move a matrix of n = {work[UP]['n']} up and down takes as long as {sums:.3g} sums "
            f"with another, or {products:.3g} products."
        )
    return found


def _of_link(rows: Rows, fit: Row) -> str:
    """Say what copies that are waited for take, and alpha of those in a row."""
    what = fit["what"]
    in_a_row = "".join(
        f"; in a row, alpha is {in_seconds(row['alpha'])}"
        for row in rows_of(rows, "fit", what=what + IN_A_ROW)
    )
    return (
        f"{what[0].upper()}{what[1:]}: {in_seconds(fit['alpha'])} + bytes / "
        f"{in_units(fit['beta'], 'B/s')}, at most {percent(fit['worst error'])} off{in_a_row}."
    )


def draw(figure: Any, rows: Rows) -> None:
    """Draw rates over bytes, times of allocation, and the matrix of pairs of GPUs."""
    pairs = rows_of(rows, "pairs")
    copies, memory, *matrix = panels(figure, 3 if pairs else 2)
    whats = values_of(rows_of(rows, "times"), "what")
    for i, what in enumerate(what for what in whats if not _is_allocation(what)):
        shown = [{**row, "GB/s": row["bytes/s"] / 1e9} for row in rows_of(rows, "times", what=what)]
        line(copies, shown, "bytes", "GB/s", what, i)
    finish(copies, "copies", "bytes", "GB/s")
    for i, what in enumerate(filter(_is_allocation, whats)):
        line(memory, rows_of(rows, "times", what=what), "bytes", "seconds", what, i)
    finish(memory, "allocation, and the first touch", "bytes", "seconds")
    if pairs:
        gpus = sorted(values_of(pairs, "from"))
        speed = {(row["from"], row["to"]): row["bytes/s"] / 1e9 for row in pairs}
        values = [[speed.get((i, j), np.nan) for j in gpus] for i in gpus]
        heat_map(figure, matrix[0], values, gpus, gpus, "GB/s")
        finish(matrix[0], "from GPU (row) to GPU", "", "", logarithmic="", grid=False)


_TIMED: dict[str, Callable[[Any], str]] = {**SECONDS, "bytes/s": rate("B/s")}

STUDY = Study(
    name="transfers",
    question="How long do transfers take, and how much work must a matrix be worth to be moved?",
    source="Volkov and Demmel 2008, 3.2; matrix-vector products on Tesla-class GPUs",
    original="11 µs + bytes / (3.3 GB/s), a few percent off",
    tables=(
        StudyTable(
            "fit", "time = alpha + bytes / beta",
            {"what": WORD, "alpha": in_seconds, "beta": rate("B/s"), "worst error": percent},
        ),
        StudyTable("times", "one size at a time", {"what": WORD, "bytes": BYTES, **_TIMED}),
        StudyTable(
            "worth", "a matrix on the way",
            {"what": WORD, "n": str, **SECONDS, "per byte": rate("s")},
        ),
        StudyTable("slot", "the GPU's slot, as the system says",
                   {"lanes": str, "most lanes": str, "bytes/s": rate("B/s")}),
        StudyTable("pairs", "from GPU to GPU, in a row", {"from": str, "to": str, **_TIMED}),
        StudyTable(
            "together", "between the host and several GPUs at once",
            {"way": WORD, "GPUs": str, **_TIMED},
        ),
    ),
    sizes={"bytes": [2**k for k in range(8, 29, 2)], "order": 8192},
    quick={"bytes": [2**12, 2**16, 2**20], "order": 512},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
