"""``hetero-la probe``, with few sizes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import hetero_la
from hetero_la.cli.commands import probe
from hetero_la.cli.main import main
from hetero_la.pictures.charts import rates
from hetero_la.predict import profiling
from hetero_la.scheduler.cluster import clients
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.machine import profile as machine_profile
from hetero_la.scheduler.machine.profile_file import FORMAT, read_profile
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.probe import copies, dask_latency, machine
from hetero_la.studies.common.symptoms import MICROBENCHMARKS
from tests.command_line import in_own_folder, refused  # noqa: F401  (a fixture)
from tests.machine import kept, measured, profile
from tests.scheduler.recovery import local_cluster

FEW = {
    "gemm": ((16, 64), (8, 16), (8, 64)),
    "getrf": ((64, 128), (8, 16)),
    "geqrf": ((64, 128), (8, 16)),
    "netperm": ((8, 16),),
}


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_LA_PROFILE", str(tmp_path / "kept" / "profile.json"))
    monkeypatch.setattr(machine, "grids", lambda *args, **kwargs: FEW)
    monkeypatch.setattr(copies, "_COLUMNS", 256)
    monkeypatch.setattr(copies, "_MESSAGES", (2**13, 2**23))
    monkeypatch.setattr(copies, "_TIMES", 2)
    monkeypatch.setattr(dask_latency, "_REPEATS", 2)
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 2.0)  # where no scheduler is
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))  # whatever else is running


def test_a_probe_is_kept_printed_and_drawn(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_profile, "_MOST_SPREAD", math.inf)  # other tests go on beside this
    argv = ["probe", "--cpus", "2", "--blas-threads", "1", "--quick"]
    assert main([*argv, "--plot", "rates.svg"]) == 0
    out, err = capfd.readouterr()
    known = current_profile()
    assert known is not None
    assert {(d.threads, d.beside) for d in known.devices} >= {(1, 2)}
    assert known.dask.start > 0
    assert "2 x 1 CPU threads, side by side, float64" in out
    assert re.search(r"\n  gemm +m 16\.\.64, k 8\.\.16, n 8\.\.64 +\S+ [kMG]flop/s  ", out)
    assert "turned copy: " in out
    assert re.fullmatch(
        r"wrote \S*profile\.json, [\d.]+ kB: that profile\nwrote rates\.svg, [\d.]+ kB: .*\n",
        err,
    )
    drawn = Path("rates.svg").read_text()
    assert drawn.startswith("<?xml")
    assert main(["lu", "--random", "200", "-v"]) == 0
    assert f"model: this machine's profile, measured {known.measured}" in capfd.readouterr().err


def test_a_deep_probe_keeps_what_microbenchmarks_find(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["probe", "--cpus", "1", "--blas-threads", "1", "--quick", "--deep", "-o", "p.json"]
    assert main(argv) == 0
    out, err = capfd.readouterr()
    kept = json.loads(Path("p-deep.json").read_text())
    assert [one["study"] for one in kept["studies"]] == list(MICROBENCHMARKS)
    for one in kept["studies"]:
        assert one["rows"] or one["left_out"]
        assert all(sentence in out for sentence in one["found"])
    assert ("nothing looks sick" in out) == (kept["symptoms"] == [])
    assert all(f"  {sign}\n" in out for sign in kept["symptoms"])
    assert re.search(r"^wrote p-deep\.json, .*: what the microbenchmarks have found$", err, re.M)


@pytest.mark.slow
def test_another_type_is_added(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["probe", "--cpus", "1", "--blas-threads", "1"]
    assert main(argv) == main([*argv, "--dtype", "float32"]) == 0
    found = {(d.threads, d.model.dtype) for d in current_profile().devices}
    assert {(1, "float64"), (1, "float32")} <= found


@pytest.mark.slow
def test_a_profile_elsewhere_leaves_the_kept_one_alone() -> None:
    argv = ["probe", "--cpus", "1", "--blas-threads", "1", "-o", "other.json"]
    assert main(argv) == 0
    assert current_profile() is None
    assert read_profile(Path("other.json")).devices
    assert json.loads(Path("other.json").read_text())["format"] == FORMAT


@pytest.mark.slow
@pytest.mark.filterwarnings("default::hetero_la.scheduler.machine.this_machine.ProfileWarning")
def test_a_busy_machine_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1e3, 0.0, 0.0))
    argv = ["probe", "--cpus", "1", "--blas-threads", "1", "-o", "other.json"]
    assert main(argv) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hetero-la: warning: this machine is busy (a load of 1000.0 on ")


def test_the_report_names_links_and_gpus() -> None:
    figures = {"launch_seconds": 3e-6, "strided_copy_bandwidth": 57e9, "getrf_ib": 32}
    gpu = measured()._replace(name="NVIDIA H200, 140 GiB", figures=figures)
    text = "\n".join(part for part in probe.report(profile(gpu)) if isinstance(part, str))
    assert "NVIDIA H200, 140 GiB, float64" in text
    assert "  launch: 3 µs\n  strided copy: 57 GB/s" in text
    assert "  getrf: 32 columns by one kernel (ib)" in text
    assert "host to gpu: 10 µs + bytes / 50 GB/s" in text


def apart(client: object, **_: object) -> list[WorkerInfo]:
    """The workers of a cluster, as if each were on a host of its own."""
    return [replace(info, host=info.name) for info in worker_infos(client)]


def test_what_was_measured_on_a_cluster_is_kept_with_what_the_profile_holds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kept()
    before = current_profile()
    monkeypatch.setattr(profiling, "worker_infos", apart)
    with local_cluster(2) as client:
        address = client.scheduler.address
        assert main(["probe", "--scheduler", address]) == 0
        out, err = capfd.readouterr()
        found = current_profile()
        assert main(["probe", "--scheduler", address, "-o", "other.json"]) == 0
        team = apart(client)
    assert re.fullmatch(r"wrote .*: the profile with them\n", err)
    assert re.fullmatch(
        r"Dask's messages: [\d.]+ [mµ]s \+ bytes / [\d.]+ [MG]B/s\n"
        r"Dask: [\d.]+ m?s for a run, [\d.]+ [mµ]s from task to task\n",
        out,
    )
    assert list(found.links) == ["host_to_gpu", "Dask's messages"]
    assert found.measured == before.measured
    assert [d.threads for d in found.devices] == [d.threads for d in before.devices]
    assert found.dask == before.dask
    assert 0 < found.cluster_dask.start < 10
    assert list(read_profile(Path("other.json")).links) == ["Dask's messages"]
    # Plans use them, and say so.
    plan = hetero_la.plan("lu", (500, 500), nb=100, workers=team)
    assert plan.model.links["Dask's messages"] == found.links["Dask's messages"]
    assert plan.model.dask == found.cluster_dask
    assert re.search(r"panels by Dask's messages between 2 processes.* [mµ]s\n", plan.explain())
    # A later probe of the machine leaves them, one of another cluster does not.
    later = found.merged(before)
    assert (later.links, later.cluster_dask) == (found.links, found.cluster_dask)
    assert later.with_cluster({}, before.dask).links == before.links


def test_a_cluster_of_one_worker_has_no_links(capfd: pytest.CaptureFixture[str]) -> None:
    with hetero_la.Cluster(cpus=2) as cluster:
        for client in (cluster, None):
            with pytest.raises(ValueError, match="must have workers in other processes"):
                profiling.profile_with_cluster(None, client)
    with local_cluster(1) as client:
        assert main(["probe", "--scheduler", client.scheduler.address]) == 0
    assert re.match(r"Dask: [\d.]+ m?s for a run", capfd.readouterr().out)
    assert current_profile().links == {}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_plots_of_every_kind(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rates{suffix}"
    rates.write_rates(profile().devices, path)
    assert path.stat().st_size > 10_000


def test_no_line_of_a_plot_touches_its_frame() -> None:
    axes = Figure().subplots()
    for rate in (97.0, 97.5):  # nearly equal: Matplotlib leaves 5 % of 0.5
        rates._line(axes, [128, 512], [rate, rate], f"{rate}")
    rates._finish(axes, "inner size k, columns")
    assert axes.get_ylim() == (0, pytest.approx(97.5 * 1.05))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [(["--plot", "rates.txt"], "must end in one of .svg, .png, .pdf, not rates.txt"),
     (["--plot", "no/rates.svg"], "there is no folder"),
     (["-o", "no/profile.json"], "there is no folder"),
     (["-o", "both.svg", "--plot", "./both.svg"], "two outputs cannot both be written to both.svg"),
     (["--gpus", "99"], "GPUs, but 99 were asked for"),
     (["--cpus", "0"], "a cluster needs at least one worker"),
     (["--blas-threads", "0"], "--blas-threads"),
     (["--scheduler", "tcp://127.0.0.1:9"], "127.0.0.1:9"),
     (["--scheduler", "nowhere"], "nowhere"),
     (["--scheduler", "tcp://127.0.0.1:9", "--gpus", "1"], "--gpus starts workers"),
     (["--scheduler", "tcp://127.0.0.1:9", "--quick"], "this machine: leave out --quick"),
     (["--scheduler", "tcp://127.0.0.1:9", "--deep"], "this machine: leave out --deep")],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_once(
    argv: list[str],
    sentence: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "_ANSWER_SECONDS", 0.5)
    assert sentence in refused(capfd, "probe", *argv)
