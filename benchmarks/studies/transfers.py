"""Transfers between a host's memory and GPUs, and between GPUs: time = alpha + bytes / beta.

Beside them stand what they are not to be confused with: allocation, and the first touch of memory
that nobody has written to.  Last come the seconds per byte of the way up, of work, and of the way
down, which say how much work a matrix must be worth to be moved.
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
from hetero_la.studies.common.timing import Call, Clock, gpu_clock, host_clock, samples, spread
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds, in_units
from hetero_la.tiles.arrays.transfer import enable_peers, pinned_empty


def _written(array: np.ndarray) -> np.ndarray:
    array[...] = 1
    return array


def _touch(nbytes: int) -> None:
    """Write to memory that is new to the process."""
    np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)[...] = 1


def cpu_copies(nbytes: int) -> dict[str, Call]:
    """Return copies within the host's memory, and what its allocation costs."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    return {
        "host to host": lambda: np.copyto(target, source),
        "allocate on the host": lambda: np.empty(nbytes, np.uint8),
        "allocate on the host, new pages": lambda: mmap.mmap(-1, nbytes).close(),
        "allocate on the host and touch new pages": lambda: _touch(nbytes),
    }


def gpu_copies(nbytes: int) -> dict[str, tuple[Call, Clock]]:
    """Return copies between the host and the current GPU, each with its clock.

    Those of pageable memory return when they are done, so that the host's clock times them.
    """
    import cupy

    device = cupy.ones(nbytes, cupy.uint8)
    other = cupy.empty_like(device)
    pinned = _written(pinned_empty((nbytes,), np.uint8))
    pageable = np.ones(nbytes, np.uint8)
    pool = cupy.get_default_memory_pool()

    def whole(call: Call) -> Call:
        def done() -> None:
            call()
            cupy.cuda.get_current_stream().synchronize()

        return done

    def allocate() -> None:
        memory = cupy.cuda.runtime.malloc(nbytes)
        cupy.cuda.runtime.free(memory)

    def allocate_by_pool() -> None:
        pool.malloc(nbytes)

    return {
        "host to GPU, pinned": (lambda: device.set(pinned), gpu_clock),
        "GPU to host, pinned": (
            lambda: device.get(out=pinned, blocking=False), gpu_clock,
        ),
        "host to GPU, pageable": (whole(lambda: device.set(pageable)), host_clock),
        "GPU to host, pageable": (whole(lambda: device.get(out=pageable)), host_clock),
        "within the GPU": (lambda: cupy.copyto(other, device), gpu_clock),
        "allocate on the GPU": (allocate, host_clock),
        "allocate by CuPy's pool": (allocate_by_pool, host_clock),
    }  # fmt: skip


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
        copies = {what: (call, host_clock) for what, call in cpu_copies(nbytes).items()}
        if run.gpus:
            copies |= gpu_copies(nbytes)
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
    work: dict[str, Call] = {
        "up": lambda: a.set(host),
        "sum of two": lambda: cupy.add(a, b, out=c),
        "product of two": lambda: cupy.matmul(a, b, out=c),
        "down": lambda: a.get(out=host, blocking=False),
    }
    for what, call in work.items():
        found = spread(samples(call, gpu_clock))
        each = found["seconds"] / a.nbytes
        yield {"table": "worth", "what": what, "n": n, **found, "per byte": each}


def _between_gpus(run: StudyRun) -> Iterator[Row]:
    """Yield rates of all pairs of GPUs, and of all GPUs that copy from the host at once."""
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
        with cupy.cuda.Device(j):
            stream = cupy.cuda.get_current_stream()
            copy = functools.partial(
                cupy.cuda.runtime.memcpyPeerAsync,
                arrays[j].data.ptr, j, arrays[i].data.ptr, i, nbytes, stream.ptr,
            )  # fmt: skip
            found = spread(samples(copy, gpu_clock))
        speed = nbytes / found["seconds"]
        yield {"table": "pairs", "from": i, "to": j, **found, "bytes/s": speed}
    for together in range(1, run.gpus + 1):
        found = spread(samples(functools.partial(_all_up, arrays[:together], hosts)))
        speed = together * nbytes / found["seconds"]
        yield {"table": "together", "GPUs": together, **found, "bytes/s": speed}


def _all_up(arrays: list[Any], hosts: list[np.ndarray]) -> None:
    """Copy to several GPUs at once, and wait for all."""
    import cupy

    for enqueue in (True, False):
        for array, host in zip(arrays, hosts, strict=False):
            with array.device:
                if enqueue:
                    array.set(host)
                else:
                    cupy.cuda.get_current_stream().synchronize()


def find(rows: Rows) -> list[str]:
    """Say what the links are, and how much work makes up for a transfer."""
    wanted = ("host to GPU, pinned", "GPU to host, pinned", "host to GPU, pageable", "host to host")
    found = [
        f"{what[0].upper()}{what[1:]}: {in_seconds(row['alpha'])} + bytes / "
        f"{in_units(row['beta'], 'B/s')}, up to {percent(row['worst error'])} off."
        for what in wanted
        for row in rows_of(rows, "fit", what=what)
    ]
    each = {row["what"]: row["per byte"] for row in rows_of(rows, "worth")}
    if each:
        sums = (each["up"] + each["down"]) / each["sum of two"]
        found.append(f"A byte that goes up and down costs as much as {sums:.0f} sums with it.")
    return found


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
        StudyTable("times", "one at a time", {"what": WORD, "bytes": BYTES, **_TIMED}),
        StudyTable(
            "worth", "a matrix on the way",
            {"what": WORD, "n": str, **SECONDS, "per byte": rate("s")},
        ),
        StudyTable("slot", "the GPU's slot, as the system says",
                   {"lanes": str, "most lanes": str, "bytes/s": rate("B/s")}),
        StudyTable("pairs", "between GPUs", {"from": str, "to": str, **_TIMED}),
        StudyTable("together", "from the host to several GPUs at once", {"GPUs": str, **_TIMED}),
    ),
    sizes={"bytes": [2**k for k in range(8, 29, 2)], "order": 8192},
    quick={"bytes": [2**12, 2**16, 2**20], "order": 512},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
