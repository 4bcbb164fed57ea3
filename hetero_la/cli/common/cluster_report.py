"""What a running cluster consists of, and how fast its workers exchange panels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hetero_la.cli.common.output import new_table
from hetero_la.cli.common.rows import workers_text
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.on_dask.pairs import group_pairs, measure_pair
from hetero_la.scheduler.placement.workers import WorkerInfo, transport_of
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds

if TYPE_CHECKING:
    from rich.table import Table

#: Packages whose versions should be the same everywhere.
_PACKAGES = ("python", "hetero-la", "numpy", "scipy", "dask", "distributed")


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What there is in a cluster.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler.
    versions : dict
        For each package, its versions, and who has them: the client, the scheduler, workers.
    workers : list of WorkerInfo
        The workers.
    """

    scheduler: str
    versions: dict[str, dict[str, list[str]]]
    workers: list[WorkerInfo]


@dataclass(frozen=True, slots=True)
class PairReport:
    """What was measured between two workers.

    Parameters
    ----------
    first, second : str
        Names of the workers.
    pairs : int
        Number of pairs of workers for which these two stand.
    hosts : list of str
        Their hosts.
    transport : str
        How they exchange panels.
    latency, bandwidth : float
        A message takes ``latency + nbytes / bandwidth`` seconds.
    """

    first: str
    second: str
    pairs: int
    hosts: list[str]
    transport: str
    latency: float
    bandwidth: float


def describe_cluster(client: Any) -> ClusterReport:
    """Ask a cluster for its workers and their versions of packages."""
    workers = worker_infos(client)
    names = {worker.address: worker.name for worker in workers}
    return ClusterReport(client.scheduler.address, _versions(client, names), workers)


def _versions(client: Any, names: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """Return who has which version of each package; left out are those that nobody has."""
    answers = client.get_versions(packages=_PACKAGES[1:])
    there = {"client": answers["client"], "scheduler": answers["scheduler"]}
    said_by = answers["workers"]
    there |= {name: said_by[at] for at, name in names.items() if at in said_by}
    found: dict[str, dict[str, list[str]]] = {package: {} for package in _PACKAGES}
    for who, said in there.items():
        for package, versions in found.items():
            versions.setdefault(said["packages"][package] or "missing", []).append(who)
    return {package: versions for package, versions in found.items() if [*versions] != ["missing"]}


def measured_pairs(client: Any) -> Iterator[PairReport]:
    """Measure each pair of workers, or one of each kind; that takes about a second for each."""
    for group in group_pairs(worker_infos(client)):
        first, second = group[0]
        link = measure_pair(client, first, second)
        yield PairReport(
            first.name, second.name, len(group), sorted({first.host, second.host}),
            transport_of(first, second).value, **asdict(link),
        )  # fmt: skip


def cluster_entries(cluster: ClusterReport) -> dict[str, str]:
    """Return names and texts that sum up a cluster."""
    hosts = counted(len({worker.host for worker in cluster.workers}), "host")
    found = {
        "scheduler": cluster.scheduler,
        "workers": f"{workers_text(cluster.workers)} on {hosts}",
    }
    for package, versions in cluster.versions.items():
        who = (f"{version} ({', '.join(names)})" for version, names in versions.items())
        found[package] = next(iter(versions)) if len(versions) == 1 else ", ".join(who)
    return found


def worker_table(workers: Sequence[WorkerInfo]) -> Table:
    """Return a table of workers; those without a name are known by their address."""
    head = ["worker", "kind", "host", "process", "GPU", "memory", "BLAS threads", "address"]
    rows = [
        [
            one.name, one.kind_text, one.host, str(one.pid), one.gpu or "-", in_bytes(one.memory),
            str(one.blas_threads), one.address,
        ]
        for one in workers
    ]  # fmt: skip
    named = any(one.name != one.address for one in workers)
    head, *rows = (row if named else row[:-1] for row in (head, *rows))
    return new_table(head, rows, left=("worker", "kind", "host", "GPU", "address"))


def pair_table(pairs: Iterable[PairReport]) -> Table:
    """Return a table of pairs of workers."""
    head = ("workers", "pairs like it", "hosts", "transport", "latency", "bandwidth")
    rows = [
        (
            f"{one.first}, {one.second}", str(one.pairs), ", ".join(one.hosts), one.transport,
            in_seconds(one.latency), f"{in_bytes(one.bandwidth)}/s",
        )
        for one in pairs
    ]  # fmt: skip
    return new_table(head, rows, left=("workers", "hosts", "transport"))
