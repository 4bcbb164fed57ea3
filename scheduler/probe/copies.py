"""Probes of copies: in a device's memory, between the host and GPUs, and between processes."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from hetero_la.scheduler.machine.model import LinkModel, link_name
from hetero_la.scheduler.placement.workers import Transport, WorkerInfo, transport_of
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.kernels import sample_together
from hetero_la.tiles.arrays.transfer import pinned_empty
from hetero_la.tiles.kernels.device import Array, Queue
from hetero_la.tiles.storage.pinning import pinned
from hetero_la.tiles.storage.staging import Staging

_ROWS, _COLUMNS, _BLOCK = 4096, 2048, 256
#: Rows of the strided copy: a tile's, out of columns of `_ROWS`.
_SHORT = 64
#: Upper bound of a copy's bytes/s, by which the duration of one is estimated beforehand.
_FAST = 2e10
#: Elements of the transfers to which a link is fitted.
_TRANSFERS = (2**7, 2**12, 2**16, 2**19, 2**22)
#: The same, of those by threads: the largest first, as it makes the pinned buffers of all.
_STAGED = (2**26, 2**20, 2**12)
#: Bytes of the messages to which a link between two processes is fitted, and how often each goes.
_MESSAGES, _TIMES = (2**13, 2**17, 2**20, 2**23, 2**26), 7
#: Returns the seconds in which so many bytes get from the first worker to the second.
Measure = Callable[[WorkerInfo, WorkerInfo, int], float]


class _Copies:
    """Copies within the memory of one device."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.source = probe.array(_ROWS, _COLUMNS)
        self.target = probe.device.empty((_ROWS, _COLUMNS), probe.dtype)

    def rates(self, how: str) -> list[float]:
        """Return several samples of bytes per second, for the kind of copy `how`.

        "aligned" copies whole columns, contiguous in memory, and "strided" a tile's rows out of
        each; "loaded" a column-major matrix into newly allocated memory, "turned" a row-major one.
        """
        rate = self._rate if how in ("aligned", "strided") else self._load
        return [rate(how) for _ in range(8)][1:]

    def _rate(self, how: str) -> float:
        rows, repeats = (_ROWS, 1) if how == "aligned" else (_SHORT, 4)
        target, source = self.target[:rows], self.source[:rows]
        copy = functools.partial(self.probe.device.copy, target, source, Queue.PANEL)
        clock = self.probe.clock(target.nbytes / _FAST)
        return target.nbytes / self.probe.sample(copy, repeats, clock=clock)

    def _load(self, how: str) -> float:
        source = self.source if how == "loaded" else np.ascontiguousarray(self.source)
        target = np.empty((_ROWS, _COLUMNS), source.dtype, order="F")

        def load() -> None:
            for first in range(0, _COLUMNS, _BLOCK):
                part = slice(first, first + _BLOCK)
                self.probe.device.copy(target[:, part], source[:, part], Queue.COPY)

        # Wall time: the many short copies also wait for the interpreter.
        return target.nbytes / self.probe.sample(load)


def measure_copies(probes: Sequence[Probe]) -> dict[str, float]:
    """Return bytes/s of copies, by kind of copy, on devices of a kind that all copy at once."""
    kinds = ["aligned", "strided", *(["loaded", "turned"] if probes[0].kind == "cpu" else [])]
    found = sample_together(probes, _Copies, _Copies.rates, kinds)
    return {kind: statistics.median(rates) for kind, rates in zip(kinds, found, strict=True)}


def measure_links(probe: Probe) -> dict[str, LinkModel]:
    """Return the links between the host and a GPU, each way, for pinned and for pageable memory.

    Copies from and to pageable memory are those of a run, by threads and pinned buffers.  What it
    takes to pin such memory, written to or new, is a link, too.
    """
    copies = Staging(probe.device)

    def store(target: Array, source: Array) -> None:
        copies.download(target, source)
        copies.flush()

    def store_anew(target: Array, source: Array) -> None:
        store(np.empty_like(target), source)

    def pin(target: Array, source: np.ndarray) -> None:
        with pinned([source]):
            pass

    def pin_anew(target: Array, source: np.ndarray) -> None:
        with pinned([], fresh=[np.empty_like(source)]):
            pass

    with probe.device.activate():
        locked = host_pairs(probe, _TRANSFERS)
        pageable = host_pairs(probe, _STAGED, functools.partial(np.empty, order="F"))
        return {
            "host_to_gpu": link(probe, locked),
            "gpu_to_host": link(probe, _back(locked)),
            "pageable_to_gpu": link(probe, pageable, copies.upload),
            "gpu_to_pageable": link(probe, _back(pageable), store),
            "gpu_to_new": link(probe, _back(pageable), store_anew),
            "pinning": link(probe, pageable, pin),
            "pinning_new": link(probe, pageable, pin_anew),
        }


def _back(pairs: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    return [(source, target) for target, source in pairs]


def host_pairs(
    probe: Probe, sizes: Sequence[int], allocate: Callable[..., np.ndarray] = pinned_empty
) -> list[tuple[Array, Array]]:
    """Return arrays of so many elements on a device, each with one on the host."""
    pairs = [
        (probe.device.empty((n, 1), probe.dtype), allocate((n, 1), probe.dtype)) for n in sizes
    ]
    for _, host in pairs:
        host[...] = 1
    return pairs


def measure_peer_link(source: Probe, target: Probe) -> LinkModel:
    """Return the link from one GPU to another."""
    with source.device.activate():
        sources = [source.array(n, 1) for n in _TRANSFERS]
    with target.device.activate():
        pairs = [(target.device.empty(s.shape, s.dtype), s) for s in sources]
        return link(target, pairs)


def link(
    probe: Probe,
    pairs: Sequence[tuple[Array, Array]],
    copy: Callable[[Array, Array], None] | None = None,
) -> LinkModel:
    """Fit a link to the times of copies into the first array of each pair from the second."""

    def by_device(target: Array, source: Array) -> None:
        probe.device.copy(target, source, Queue.COPY)

    timed = copy or by_device
    seconds = [probe.seconds(functools.partial(timed, to, origin)) for to, origin in pairs]
    return fit_link([to.nbytes for to, _ in pairs], seconds)


def measure_pairs(
    workers: Sequence[WorkerInfo],
    measure: Measure,
    report: Callable[[str], None] = lambda what: None,
) -> dict[str, LinkModel]:
    """Return the links between the processes of some workers, by `link_name`.

    Each kind of link is measured between the first two workers that have it.

    Parameters
    ----------
    workers : sequence of WorkerInfo
        Workers of a cluster.
    measure : callable
        Returns the seconds of a message from one worker to another, of so many bytes.
    report : callable, optional
        Called with a text before each link.

    Examples
    --------
    >>> workers = [WorkerInfo(f"cpu{i}", "cpu", pid=i, host="a") for i in range(3)]
    >>> links = measure_pairs(workers, lambda first, second, nbytes: 1e-4 + nbytes / 4e9)
    >>> {name: round(1e6 * link.latency) for name, link in links.items()}
    {'shared memory': 100}
    """
    links: dict[str, LinkModel] = {}
    for first, second in itertools.combinations(workers, 2):
        name = link_name(first, second)
        if name in links or transport_of(first, second) is Transport.ONE_PROCESS:
            continue
        report(f"{name}, from {first.name} to {second.name}")
        timed = functools.partial(measure, first, second)
        timed(_MESSAGES[0])  # it also connects the two
        seconds = [statistics.median(timed(size) for _ in range(_TIMES)) for size in _MESSAGES]
        links[name] = fit_link(_MESSAGES, seconds)
    return links


def fit_link(nbytes: Sequence[float], seconds: Sequence[float]) -> LinkModel:
    """Fit latency and bandwidth to the times of transfers, with least relative errors.

    Examples
    --------
    >>> sizes = [1e3, 1e5, 1e7]
    >>> link = fit_link(sizes, [1e-5 + size / 5e10 for size in sizes])
    >>> f"{link.latency:.1e} s, {link.bandwidth:.1e} B/s"
    '1.0e-05 s, 5.0e+10 B/s'
    """
    times = np.asarray(seconds)
    matrix = np.column_stack([np.ones(len(times)), nbytes]) / times[:, None]
    latency, per_byte = np.linalg.lstsq(matrix, np.ones(len(times)), rcond=None)[0]
    if latency < 0 or per_byte <= 0:  # from the shortest and the longest alone
        latency, per_byte = times.min(), (times[-1] - times[0]) / (nbytes[-1] - nbytes[0])
    return LinkModel(float(latency), float(1 / max(per_byte, 1e-15)))
