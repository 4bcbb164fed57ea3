"""Signs of a sick machine in what studies have measured: slow links, throttling, small caches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping

from hetero_la.studies.common.study import Rows, rows_of
from hetero_la.tiles.arrays.counted import in_bytes, in_seconds, in_units

#: Studies that are looked at, in this order.
MICROBENCHMARKS = (
    "launch", "transfers", "memory", "pipeline", "bandwidth", "barrier", "blas12",
)  # fmt: skip
#: Fractions of what hardware should reach below which it looks sick: of a slot's and of a memory's
#: bytes/s, of the peak, of the second cache (whose halves a multiprocessor may see as one), and of
#: other links.
_SLOT, _PINS, _PEAK, _CACHE, _OTHERS = 0.6, 0.7, 0.8, 0.4, 0.5
#: Fraction of the full clock that a GPU should keep under load.
_SUSTAINED = 0.85
#: Seconds of a launch with the wait for its end.
_LAUNCH = 50e-6
#: A machine is busy if so many of its samples are so many times the median.
_MANY, _LATE = 0.25, 2.0


def _launches(rows: Rows) -> Iterator[str]:
    for row in rows_of(rows, "times", place="GPU", way="driver", what="synchronized"):
        if row["seconds"] > _LAUNCH:
            yield f"a launch takes {in_seconds(row['seconds'])}, with the wait for its end"


def _links(rows: Rows) -> Iterator[str]:
    rates = {
        row["what"]: row["beta"]
        for row in rows_of(rows, "fit")
        if row["what"] in ("host to GPU, pinned", "GPU to host, pinned")
    }
    for row in rows_of(rows, "slot"):
        if row["lanes"] < row["most lanes"]:
            yield f"the GPU's slot uses {row['lanes']} of {row['most lanes']} lanes"
    best = max([row["bytes/s"] for row in rows_of(rows, "slot")], default=0.0)
    for what, beta in rates.items():
        if beta < _SLOT * best:
            yield (
                f"the link {what}, has {in_units(beta, 'B/s')}, and its slot "
                f"{in_units(best, 'B/s')}"
            )
        if beta < _OTHERS * max(rates.values()):
            yield f"the link {what}, has {in_units(beta, 'B/s')}, less than half of the way back"
    pairs = rows_of(rows, "pairs")
    usual = statistics.median(row["bytes/s"] for row in pairs) if pairs else 0.0
    for row in pairs:
        if row["bytes/s"] < _OTHERS * usual:
            yield (
                f"GPU {row['from']} to GPU {row['to']} has {in_units(row['bytes/s'], 'B/s')}, and "
                f"others {in_units(usual, 'B/s')}"
            )


def _caches(rows: Rows) -> Iterator[str]:
    for row in rows_of(rows, "said"):
        if row["seen"] and row["of said"] < _CACHE:
            yield (
                f"the {row['what']} of the GPU holds {in_bytes(row['seen'])}, and CUDA says "
                f"{in_bytes(row['bytes'])}"
            )


def _clocks(rows: Rows) -> Iterator[str]:
    for row in rows_of(rows, "instructions"):
        if row.get("peak") and row["best"] < _PEAK * row["peak"]:
            yield (
                f"{row['instruction']} has {in_units(row['best'], 'flop/s')}, and "
                f"{in_units(row['peak'], 'flop/s')} at the highest clock: it is throttled, or busy"
            )


def _memories(rows: Rows) -> Iterator[str]:
    copies = [row["bytes/s"] for row in rows_of(rows, "copies", place="GPU")]
    for row in rows_of(rows, "pins"):
        if copies and max(copies) < _PINS * row["bytes/s"]:
            yield (
                f"copies in the GPU's memory have {in_units(max(copies), 'B/s')}, and its pins "
                f"{in_units(row['bytes/s'], 'B/s')}"
            )


_CHECKS: dict[str, Callable[[Rows], Iterator[str]]] = {
    "launch": _launches, "transfers": _links, "memory": _caches, "pipeline": _clocks,
    "bandwidth": _memories,
}  # fmt: skip


def symptoms(found: Mapping[str, Rows], sustained: Mapping[str, float]) -> list[str]:
    """Return what looks sick, in sentences.

    Parameters
    ----------
    found : mapping
        Rows of studies, by name.
    sustained : mapping
        The fraction of its full clock that each GPU keeps under load, by the GPU's name.

    Examples
    --------
    >>> symptoms({"bandwidth": []}, {"NVIDIA H200": 0.7})
    ['NVIDIA H200 falls to 70 % of its full clock under load']
    """
    signs = [
        f"{name} falls to {100 * fraction:.0f} % of its full clock under load"
        for name, fraction in sustained.items()
        if fraction < _SUSTAINED
    ]
    for name, check in _CHECKS.items():
        signs += check(found.get(name, []))
    timed = [row for rows in found.values() for row in rows if "seconds" in row]
    late = sum(row["most"] > _LATE * row["seconds"] for row in timed)
    if timed and late > _MANY * len(timed):
        signs.append(
            f"the machine is busy: of {len(timed)} measurements {late} have a sample of more than "
            f"{_LATE:.0f} times the median"
        )
    return signs
