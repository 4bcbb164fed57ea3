"""What the originals of the studies are known for, beside what was measured here."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from hetero_la.studies.common.columns import percent
from hetero_la.studies.common.study import Row, Rows, rows_of
from hetero_la.tiles.arrays.counted import in_seconds

#: Blocks of a barrier over all multiprocessors.
_ALL_BLOCKS = 132
_OURS, _VENDOR, _MIXED = "GPU, hetero_la", "GPU, cuSOLVER", "GPU, panels on the CPU"


def _largest(rows: Rows, table: str, **entries: object) -> list[Row]:
    """Return the rows with these entries that are of the largest order."""
    found = rows_of(rows, table, **entries)
    return [row for row in found if row["n"] == max(row["n"] for row in found)]


def _each(rows: list[Row], value: Callable[[Row], str]) -> str:
    """Return a value of each routine, and their order."""
    values = ", ".join(f"{row['routine']} {value(row)}" for row in rows)
    return f"{values} (n = {rows[0]['n']})"


def _updates(rows: Rows) -> str:
    found = _largest(rows, "shares", place="1 GPU, resident")
    return f"products' share of the time: {_each(found, lambda row: percent(row['update']))}"


def _two_gpus(rows: Rows) -> str:
    return _each(
        _largest(rows, "strong", way="threads", workers=2), lambda row: f"{row['speed-up']:.2f}"
    )


def _without(part: str) -> Callable[[Rows], str]:
    def text(rows: Rows) -> str:
        found = rows_of(rows, "worth", place="1 GPU", routine="lu", without=part)
        gains = {row["n"]: row["over all"] - 1 for row in found}
        best, least = max(gains, key=gains.__getitem__), min(gains)
        return ", ".join(f"{100 * gains[n]:+.0f} % (n = {n})" for n in (best, least))

    return text


def _sizes(rows: Rows) -> str:
    """Return the gains of the best of all ways over the best single size."""
    found = [row for row in _largest(rows, "best", place="1 GPU") if row["way"] != "one size"]
    best: dict[str, Row] = {}
    for row in found:
        best[row["routine"]] = max(best.get(row["routine"], row), row, key=lambda row: row["gain"])
    return _each(list(best.values()), lambda row: f"{100 * row['gain']:+.1f} %")


def _panels(rows: Rows) -> str:
    """Return cuSOLVER's time over ours, for the widest panels of the largest order."""
    width = max(row["width"] for row in rows_of(rows, "panels"))
    ours, theirs = (_largest(rows, "panels", width=width, who=who) for who in (_OURS, _VENDOR))
    seconds = {row["routine"]: row["seconds"] for row in theirs}
    return _each(ours, lambda row: f"{seconds[row['routine']] / row['seconds']:.2f}")


def _swaps(rows: Rows) -> str:
    """Return the range of the rate of net permutations over that of swaps in turn."""
    rate = {(row["way"], row["n"]): row["bytes/s"] for row in rows_of(rows, "swaps", place="GPU")}
    orders = sorted({n for _, n in rate})
    ratio = {n: rate["net permutation", n] / rate["pair after pair", n] for n in orders}
    return " to ".join(f"{ratio[n]:.1f} (n = {n})" for n in (orders[0], orders[-1]))


def _energy(rows: Rows) -> str:
    """Return our flop/s/W over that of runs with panels on the CPU."""
    mixed = {row["routine"]: row for row in rows_of(rows, "energy", who=_MIXED)}
    return _each(
        [row for row in rows_of(rows, "energy", who=_OURS) if row["routine"] in mixed],
        lambda row: f"{100 * (row['flop/s/W'] / mixed[row['routine']]['flop/s/W'] - 1):+.0f} %",
    )


def _complex(rows: Rows) -> str:
    found = _largest(rows, "products", place="GPU", who="three real")
    rates = ", ".join(f"{row['type']} {row['rate over complex']:.2f}" for row in found)
    return f"{rates} (n = {found[0]['n']})"


def _barrier(rows: Rows) -> str:
    kinds = {row["kind"]: row["seconds"] for row in rows_of(rows, "barriers", blocks=_ALL_BLOCKS)}
    launch = kinds["a launch each"]
    shown = [in_seconds(seconds) for kind, seconds in kinds.items() if "launch" not in kind]
    ratio = statistics.median(launch / kinds[kind] for kind in kinds if "launch" not in kind)
    return f"{', '.join(shown)}, {ratio:.1f} times cheaper than a launch (median)"


class Headline(NamedTuple):
    """A figure that an original is known for, the study that repeats it, and what it found."""

    what: str
    then: str
    study: str
    now: Callable[[Rows], str]


HEADLINES = (
    Headline("factorizations, of the rate of GEMM", "80 to 90 %", "where_time_goes", _updates),
    Headline("two GPUs over one", "1.74 times", "scaling", _two_gpus),
    Headline("solves by inverse, in LU", "up to 30 %", "what_it_is_worth",
             _without("solve by inverse")),
    Headline("all swaps of a panel at once, in LU", "30 to 100 %, small matrices",
             "what_it_is_worth", _without("net swaps")),
    Headline("two levels and tuned sizes", "4 to 7 %", "two_level", _sizes),
    Headline("fused panels over cuSOLVER's", "2.4 times", "panels", _panels),
    Headline("swaps at once over swaps in turn", "2.4 to 4.9 times", "layouts", _swaps),
    Headline("flop/s/W of a GPU alone over hybrid runs", "+50 %", "energy", _energy),
    Headline("complex products by three real ones", "1.22 times", "complex3m", _complex),
    Headline("barrier of all multiprocessors",
             "1.3 to 2.0 µs, 1.5 to 5.4 times cheaper than a launch", "barrier", _barrier),
)  # fmt: skip


def headlines(rows_of_study: Callable[[str], Rows]) -> str:
    """Return the table of what others found, and what is true here; `rows_of_study` has rows."""
    lines = ["| what | then | here | study |", "|---|---|---|---|"]
    for what, then, study, now in HEADLINES:
        rows = rows_of_study(study)
        here = now(rows) if rows else ""
        lines.append(f"| {what} | {then} | {here} | [{study}]({study}.md) |")
    return "\n".join(lines) + "\n"
