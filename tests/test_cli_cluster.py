"""Commands that use the workers of a running cluster, and what they say of it."""

from __future__ import annotations

import contextlib
import io
import json
import platform
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from distributed import Client, LocalCluster
from rich.table import Table

import hetero_la
from hetero_la.cli.commands import tune
from hetero_la.cli.common.cluster_report import (
    ClusterReport,
    PairReport,
    cluster_entries,
    pair_table,
    worker_table,
)
from hetero_la.cli.common.output import print_table
from hetero_la.cli.main import main
from hetero_la.io.files import read_matrix, write_matrix
from hetero_la.scheduler.cluster import clients
from hetero_la.scheduler.cluster.clients import client_at, running_client, worker_infos
from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.scheduler.on_dask import pairs
from hetero_la.scheduler.on_dask.pairs import group_pairs, measure_pair
from hetero_la.scheduler.placement.workers import WorkerInfo, transport_of
from hetero_la.testing.matrices import generate
from hetero_la.tiles.arrays.errors import WorkerLostError
from tests.command_line import in_own_folder, refused, table  # noqa: F401  (a fixture)
from tests.machine import profile
from tests.scheduler.recovery import Hosts


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster: a CPU worker and a virtual GPU, each in a process."""
    with Hosts([]) as hosts:
        hosts.add("127.0.0.1", "--name", "first")
        hosts.add("127.0.0.2", "--name", "second", "--resources", "virtual-GPU=1")
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield hosts.address


# --- runs and plans


@pytest.mark.parametrize(
    "line",
    ["lu", "solve --nrhs 2", "cholesky", "qr", "lstsq", "lu --panel cpu --nb 32"],
    ids=lambda line: line.split()[0] + ("-panel" if "panel" in line else ""),
)
def test_a_routine_runs_on_the_cluster(
    line: str, scheduler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = [*line.split(), "--random", "90", "--scheduler", scheduler, "-v"]
    assert main(argv) == 0
    out, err = capfd.readouterr()
    (row,) = table(out)
    assert row["status"] == "ok"
    assert row["workers"] == "1virtual-gpu" + "+1cpu" * ("panel" in line)
    assert "second (virtual gpu): " in err
    assert re.search(r"^second +virtual gpu  ", err, re.MULTILINE)  # and it has run there


def test_a_file_goes_there_and_factors_come_back(scheduler: str) -> None:
    a = generate("orthog", 70)
    write_matrix("a.npy", a)
    assert main(["lu", "a.npy", "-o", "f.npz", "--trace", "t.json", "--scheduler", scheduler]) == 0
    assert np.array_equal(read_matrix("f.npz", "piv"), scipy.linalg.lu_factor(a)[1])
    assert Path("t.json").stat().st_size > 100


@pytest.mark.parametrize("own", [True, False])
def test_the_link_to_the_page_of_runs_is_printed(
    scheduler: str, capfd: pytest.CaptureFixture[str], own: bool
) -> None:
    workers = ["--cpus", "2", "--dashboard-address", "127.0.0.1:0"] if own else []
    where = workers or ["--scheduler", scheduler]
    assert main(["lu", "--random", "60", "--nb", "16", *where]) == 0
    assert "http" not in capfd.readouterr().err
    assert main(["lu", "--random", "60", "--nb", "16", "-v", *where]) == 0
    found = re.search(
        r"^watch the runs: (http://127.0.0.1:\d+/hetero-la)$", capfd.readouterr().err, re.M
    )
    assert found
    if not own:  # the other one has ended with the command
        with urllib.request.urlopen(f"{found[1]}/runs.json", timeout=30) as answer:
            runs = json.load(answer)["runs"]
        assert [run["title"] for run in runs[:2]] == ["lu of a 60 x 60 float64 matrix"] * 2


def test_a_sweep_runs_on_the_cluster(scheduler: str, capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["sweep", "lu", "--n", "20,40", "--check", "--scheduler", scheduler]
    assert main(argv) == 0
    assert [row["workers"] for row in table(capfd.readouterr().out)] == [
        "1virtual-gpu",
        "1virtual-gpu",
    ]


def test_a_graph_has_the_workers_of_the_cluster(
    scheduler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["graph", "lu", "--n", "90", "--nb", "30", "-o", "g.dot", "--panel", "cpu"]
    assert main([*argv, "--scheduler", scheduler]) == 0
    out = capfd.readouterr().out
    assert "second (virtual gpu): 3 tile columns" in out
    assert "first (cpu): panels" in out


def test_a_run_on_the_cluster_is_simulated(
    scheduler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", "qr", "--n", "900", "--scheduler", scheduler, "--nb"]
    predicted = []
    for sizes in ("10", "300", "10,300"):
        assert main([*argv, sizes]) == 0
        out = capfd.readouterr().out
        assert out.startswith("qr of a 900 x 900 float64 matrix\n")
        assert "second (virtual gpu): " in out
        value, prefix = re.search(r"^predicted: (\S+) (m?)s", out, re.MULTILINE).groups()
        predicted.append(float(value) / (1000 if prefix else 1))
    assert predicted[2] == min(predicted[:2]) < max(predicted[:2])


def test_the_predicted_timeline_of_a_cluster_is_written(
    scheduler: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.html"
    argv = ["simulate", "lu", "--n", "400", "--nb", "100", "--scheduler", scheduler]
    assert main([*argv, "--trace", str(path)]) == 0
    assert "LU of 400 × 400, tiles of 100" in path.read_text(encoding="utf-8")
    assert "the predicted timeline" in capfd.readouterr().err
    assert "must end in one of" in refused(capfd, *argv, "--trace", "a.pdf")


def test_a_matrix_that_is_too_large_for_the_cluster(
    scheduler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", "lu", "--n", "900000", "--nb", "90000", "--scheduler", scheduler]
    assert "lu of a 900000 x 900000 float64 matrix needs" in refused(capfd, *argv)
    assert main([*argv, "--anyway"]) == 0
    assert "predicted: " in capfd.readouterr().out


def test_tuning_knows_the_cluster_s_workers(
    scheduler: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "current_profile", lambda: profile())
    said = refused(capfd, "tune", "lu", "--n", "500", "--scheduler", scheduler)
    assert said.startswith("no profile of this machine knows 1 virtual gpu x 1 threads: ")


# --- what cannot be


@pytest.mark.parametrize(
    "line",
    ["lu --random 9000", "sweep lu --n 9", "graph lu --n 9 --nb 3 -o g.svg", "tune lu --n 9",
     "simulate lu --n 9", "info", "bench"],
    ids=lambda line: line.split()[0],
)  # fmt: skip
def test_nobody_answers(
    line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "current_profile", lambda: profile())
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 0.5)
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        began = time.monotonic()
        said = refused(capfd, *line.split(), "--scheduler", address)
    assert said.startswith(f"no Dask scheduler answers at '{address}': Timed out trying to connect")
    assert time.monotonic() - began < 5


def test_bench_uses_the_cluster(
    scheduler: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []
    real = hetero_la.solve

    def solve(*args: Any, **kwargs: Any) -> Any:
        used.append(running_client() is not None)
        return real(*args, **kwargs)

    monkeypatch.setattr(hetero_la, "solve", solve)
    argv = ["bench", "--seconds", "1", "--first", "8", "--functions", "solve", "-o", "b.svg"]
    assert main([*argv, "--scheduler", scheduler]) == 0
    assert f"of {scheduler}" in capfd.readouterr().out
    assert used
    assert all(used)
    assert main([*argv, "--scheduler", scheduler, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["scheduler"] == scheduler
    assert found["workers"] == [
        {"name": "second", "kind": "virtual gpu"}, {"name": "first", "kind": "cpu"}
    ]  # fmt: skip


def test_somebody_else_answers_or_nobody(scheduler: str, capfd: pytest.CaptureFixture[str]) -> None:
    with client_at(scheduler) as client:
        worker = worker_infos(client)[0].address
    for address, why in [
        (worker, "a Worker does"), ("localhost", "missing port number"),
        ("http://127.0.0.1:8787", "unknown address scheme 'http'"), ("", "missing port number"),
    ]:  # fmt: skip
        said = refused(capfd, "info", "--scheduler", address)
        assert said.startswith(f"no Dask scheduler answers at '{address}': {why}")


def test_whoever_is_silent_is_not_waited_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        said = refused(capfd, "info", "--scheduler", address)
    assert said == f"no Dask scheduler answers at '{address}': it says nothing"


def test_a_cluster_without_workers(capfd: pytest.CaptureFixture[str]) -> None:
    with Hosts([]) as hosts:
        said = refused(capfd, "qr", "--random", "9", "--scheduler", hosts.address)
        assert said == f"the Dask cluster at {hosts.address} has no running workers"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("lu --random 9 --cpus 1", "--cpus starts workers, and --scheduler uses those of a"),
     ("sweep lu --n 9 --preset laptop", "--preset starts workers"),
     ("graph lu --n 9 --nb 3 -o g.svg --gpus 2", "--gpus starts workers"),
     ("tune lu --n 9 --blas-threads 2", "--blas-threads starts workers"),
     ("simulate lu --n 9 --gpus 2", "--gpus starts workers"),
     ("simulate lu --n 9 --scaling weak", "--scaling is for a machine that --machine describes"),
     ("simulate lu --n 9 --machine h200", "not allowed with argument")],
)  # fmt: skip
def test_options_that_need_other_workers_are_refused(
    line: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(capfd, *line.split(), "--scheduler", "tcp://127.0.0.1:1")


def test_a_worker_without_the_library(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = "No module named 'hetero_la'"
    (tmp_path / "hetero_la.py").write_text(f'raise ModuleNotFoundError("{said}")')
    with Hosts([]) as hosts:
        hosts.environment["PYTHONPATH"] = str(tmp_path)
        hosts.add("127.0.0.1", "--name", "bare")
        with Client(hosts.address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
        assert main(["info", "--scheduler", hosts.address]) == 1
    err = capfd.readouterr().err
    assert re.match(rf"hetero-la: worker \S+ could not say what it is: .*{said}", err)


# --- info


def test_a_cluster_is_described(scheduler: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--scheduler", scheduler]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    head, workers, links = out.split("\n\n")
    assert head.startswith(
        f"cluster\n  scheduler    {scheduler}\n  workers      1virtual-gpu+1cpu on 1 host\n"
    )
    assert f"\n  numpy        {np.__version__}\n" in head
    first, second = table(workers)
    assert [first["worker"], second["worker"]] == ["second", "first"]
    assert [first["kind"], second["kind"]] == ["virtual gpu", "cpu"]
    assert first["process"] != second["process"]
    assert first["host"] == second["host"] == platform.node()
    assert (first["GPU"], first["BLAS threads"]) == ("-", "1")
    assert first["address"].startswith("tcp://127.0.0.2:")
    (link,) = table(links)
    assert link["workers"] == "second, first"
    assert (link["pairs like it"], link["hosts"]) == ("1", platform.node())
    assert link["transport"] == "shared memory"
    assert re.fullmatch(r"[\d.]+ [µm]s", link["latency"])
    assert re.fullmatch(r"[\d.]+ [MG]B/s", link["bandwidth"])


def test_the_description_as_data(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as running:
        assert main(["info", "--json", "--scheduler", running.scheduler_address]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["scheduler"] == running.scheduler_address
    assert [worker["name"] for worker in found["workers"]] == ["cpu0", "cpu1", "cpu2"]
    assert len({worker["pid"] for worker in found["workers"]}) == 3
    assert found["versions"]["numpy"] == {
        np.__version__: ["client", "scheduler", "cpu0", "cpu1", "cpu2"]
    }
    assert [(pair["first"], pair["second"]) for pair in found["pairs"]] == [
        ("cpu0", "cpu1"), ("cpu0", "cpu2"), ("cpu1", "cpu2"),
    ]  # fmt: skip
    for pair in found["pairs"]:
        assert 1e-6 < pair["latency"] < 1
        assert 1e7 < pair["bandwidth"] < 1e11


def test_workers_of_one_process_are_measured_too(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    ) as running:
        assert main(["info", "--json", "--scheduler", running.scheduler_address]) == 0
    (pair,) = json.loads(capfd.readouterr().out)["pairs"]
    assert pair["transport"] == "one process"
    assert 1e-6 < pair["latency"] < 1


def test_a_worker_alone_has_no_pairs(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as running:
        assert main(["info", "--scheduler", running.scheduler_address]) == 0
    cluster, workers = capfd.readouterr().out.split("\n\n")
    assert "  workers      1cpu on 1 host\n" in cluster
    assert len(table(workers)) == 1


def test_this_machine_as_data(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [*found][:3] == ["command", "version", "status"]
    assert [*found][3:] == ["devices", "libraries", "runs", "warnings", "wrote"]
    assert found["libraries"]["numpy"] == np.__version__


def lines(shown: Table) -> list[str]:
    """The lines of a table where stdout is no terminal."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_table(shown)
    return out.getvalue().splitlines()


def cluster_of(*workers: WorkerInfo) -> ClusterReport:
    versions = {"numpy": {"2.1": ["client", "a"], "2.2": ["scheduler"], "missing": ["b"]}}
    return ClusterReport("tcp://h:1", versions, list(workers))


def test_versions_that_differ_are_named_with_who_has_them() -> None:
    said = cluster_entries(
        cluster_of(WorkerInfo("a", "cpu", host="x"), WorkerInfo("b", "gpu", host="y"))
    )
    assert said["workers"] == "1gpu+1cpu on 2 hosts"
    assert said["numpy"] == "2.1 (client, a), 2.2 (scheduler), missing (b)"


def test_a_worker_without_a_name_is_known_by_its_address_alone() -> None:
    nameless = WorkerInfo("tcp://h:2", "gpu", "tcp://h:2", 7, "h", gpu="0000:17:00.0", memory=10**9)
    head, row = lines(worker_table([nameless]))
    assert head.split()[-2:] == ["BLAS", "threads"]
    assert row.split() == ["tcp://h:2", "gpu", "h", "7", "0000:17:00.0", "1", "GB", "1"]
    assert [
        line.split()[-1] for line in lines(worker_table([nameless, replace(nameless, name="a")]))
    ] == [
        "address", "tcp://h:2", "tcp://h:2",
    ]  # fmt: skip


def test_the_table_of_pairs_has_straight_columns() -> None:
    found = [
        PairReport("gpu0", "gpu1", 28, ["a"], "NCCL", 1e-5, 356e9),
        PairReport("gpu0", "gpu10", 64, ["a", "b"], "Dask's messages", 5.81e-3, 1.2e9),
    ]
    printed = lines(pair_table(found))
    assert printed[1].split("  ")[-1].strip() == "356 GB/s"
    places = map(str.index, printed, ("transport", "NCCL", "Dask"))
    assert len(set(places)) == 1
    assert [row["latency"] for row in table("\n".join(printed))] == ["10 µs", "5.81 ms"]


# --- pairs of workers


def hosts_of(count: int, each: int) -> list[WorkerInfo]:
    """Workers in processes of their own, the first of each host with a GPU."""
    return [
        WorkerInfo(f"w{host}-{i}", "gpu" if i == 0 else "cpu", f"tcp://{host}:{i}", i, f"h{host}")
        for host in range(count)
        for i in range(each)
    ]


@pytest.mark.parametrize(
    ("hosts", "each", "groups"),
    [(1, 1, []), (1, 6, [1] * 15), (3, 2, [1] * 15), (2, 4, [3, 3, 3, 3, 1, 6, 9]),
     (9, 3, [18, 36, 144, 9, 144])],
)  # fmt: skip
def test_many_pairs_are_grouped_by_what_they_have_in_common(
    hosts: int, each: int, groups: list[int]
) -> None:
    workers = hosts_of(hosts, each)
    found = group_pairs(workers)
    assert sorted(map(len, found)) == sorted(groups)
    count = len(workers)
    assert len({pair for group in found for pair in group}) == count * (count - 1) // 2
    for group in found:
        assert len({transport_of(*pair) for pair in group}) == 1
        assert len({tuple(sorted((a.kind, b.kind))) for a, b in group}) == 1
        assert len({a.host == b.host for a, b in group}) == 1


@pytest.mark.parametrize(("nbytes", "bandwidth"), [(16_000_000, 2e9), (64_000_000, 2e9)])
def test_latency_and_bandwidth_are_those_of_the_link(
    nbytes: int, bandwidth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_LARGE", nbytes)
    monkeypatch.setattr(pairs, "message_seconds", lambda *given: 1e-3 + given[3] / bandwidth)
    link = measure_pair(None, *hosts_of(1, 2))
    assert link.latency == pytest.approx(1e-3, rel=0.01)
    assert link.bandwidth == pytest.approx(bandwidth, rel=0.01)


def test_a_disturbed_measurement_makes_no_link_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {8_000: 0.02}
    monkeypatch.setattr(pairs, "message_seconds", lambda *given: told.get(given[3], 0.016))
    assert measure_pair(None, *hosts_of(1, 2)).bandwidth == pytest.approx(1e9, rel=0.01)


def take_late(seconds: float) -> None:
    """Let messages that come to this process be found so much later; 0 undoes it."""
    real: Any = getattr(WaitTable.take, "real", WaitTable.take)

    def late(self: WaitTable, key: Any) -> Any:
        found = real(self, key)
        time.sleep(seconds)
        return found

    late.real = real  # type: ignore[attr-defined]
    WaitTable.take = late if seconds else real  # type: ignore[method-assign]


def test_a_message_there_and_back_takes_two_latencies(scheduler: str) -> None:
    with client_at(scheduler) as client:
        client.run(take_late, 0.05)
        try:
            link = measure_pair(client, *worker_infos(client))
        finally:
            client.run(take_late, 0)
    assert 0.05 < link.latency < 0.095


def test_a_worker_that_has_left_ends_the_measurement(scheduler: str) -> None:
    with client_at(scheduler) as client:
        first, second = worker_infos(client)
        with pytest.raises(WorkerLostError, match="left the cluster"):
            measure_pair(client, first, replace(second, address="tcp://127.0.0.1:1"))
