"""Command ``probe``: measures this machine, and writes its profile."""

from __future__ import annotations

import argparse
import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_la.cli.common import values
from hetero_la.cli.common.output import new_table, plain
from hetero_la.cli.common.progress import show_steps
from hetero_la.io.outputs import require_different_files, require_writable_path, write_text
from hetero_la.pictures.charts.rates import write_rates
from hetero_la.pictures.suffix import require_chart
from hetero_la.predict.profiling import make_profile, profile_with_cluster
from hetero_la.scheduler.cluster.clients import client_at
from hetero_la.scheduler.cluster.sizing import ClusterSize
from hetero_la.scheduler.machine.model import NOMINAL_LINKS, DaskCosts, LinkModel
from hetero_la.scheduler.machine.profile import MeasuredDevice, Profile
from hetero_la.scheduler.machine.profile_file import encoded_profile, require_regular, write_profile
from hetero_la.scheduler.machine.rate_tables import RateTable, size_names, work
from hetero_la.scheduler.machine.this_machine import ProfileWarning, current_profile, profile_path
from hetero_la.scheduler.probe.machine import ProbeSettings
from hetero_la.studies.common.results import run_study
from hetero_la.studies.common.study import load_study
from hetero_la.studies.common.symptoms import MICROBENCHMARKS, symptoms
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds, in_units
from hetero_la.tiles.kernels.spec import SPECS

if TYPE_CHECKING:
    from rich.table import Table


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "measure this machine, so that plans can predict run times"
    parser = values.add_command(
        commands, "probe", probe, summary, usage="[options]",
        examples=("--quick", "--deep", "--dtype float32 --plot rates.svg"),
    )  # fmt: skip
    values.add_workers(parser)
    values.add_dtype(parser)
    parser.add_argument("--quick", action="store_true", help="measure fewer sizes")
    parser.add_argument(
        "--deep", action="store_true",
        help="also run the microbenchmarks of 'hetero-la study', keep what they find beside the "
        "profile, and say what looks sick",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=Path, metavar="FILE",
        help="draw the rates of panels and products: .svg, .png or .pdf (needs Matplotlib)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="write the profile to this file, which plans do not read",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="measure Dask and the links between the workers of this cluster, and nothing else",
    )  # fmt: skip


def probe(args: argparse.Namespace) -> int:
    """Measure, write the profile, print and perhaps draw it; return the exit status."""
    if args.plot is not None:
        require_chart(args.plot)
        require_writable_path(args.plot)
    if args.output is not None:
        require_writable_path(args.output)
    path = args.output or profile_path()
    require_different_files(path, args.plot)
    require_regular(path)
    older = None if args.output is not None else _present_profile()
    if args.scheduler is not None:
        return _probe_cluster(args, older, path)
    size = ClusterSize.choose(values.given(args, *values.WORKERS))
    with _show_measured(args) as show:
        settings = ProbeSettings(np.dtype(args.dtype or "float64"), args.quick, show)
        profile = make_profile(size, settings)
    if older is not None:
        profile = older.merged(profile)
    write_profile(profile, path)
    args.report.explain(*report(profile))
    args.report.wrote(path, "that profile")
    if args.plot is not None:
        write_rates(profile.devices, args.plot)
        args.report.wrote(args.plot, "a chart of its rates")
    args.report.record(profile=encoded_profile(profile))
    if args.deep:
        _probe_deep(args, profile, path.with_name(f"{path.stem}-deep.json"))
    return 0


def _probe_deep(args: argparse.Namespace, profile: Profile, path: Path) -> None:
    """Run the microbenchmarks; show and write what they find, and what looks sick."""
    results = []
    for name in MICROBENCHMARKS:
        with _show_measured(args) as show:
            report = partial(_report_of, show, name)
            results.append(run_study(load_study(name), quick=args.quick, report=report))
    found = {result.study.name: result.rows for result in results}
    sustained = {device.name: device.model.sustained for device in profile.devices if device.name}
    sick = symptoms(found, sustained)
    for result in results:
        args.report.explain("", f"{result.study.name}: {result.study.question}")
        args.report.explain(*(f"  {sentence}" for sentence in result.found))
        args.report.explain(*(f"  left out: {what}" for what in result.left_out))
    args.report.show("", "what looks sick:" if sick else "nothing looks sick")
    args.report.show(*(f"  {sign}" for sign in sick))
    documents = [result.document() for result in results]
    write_text(path, json.dumps(plain({"symptoms": sick, "studies": documents}), indent=1) + "\n")
    args.report.wrote(path, "what the microbenchmarks have found")
    args.report.record(symptoms=sick, studies=documents)


def _report_of(show: Callable[[str], None], name: str, what: str) -> None:
    show(f"{name}: {what}")


def _probe_cluster(args: argparse.Namespace, older: Profile | None, path: Path) -> int:
    """Measure the links between a cluster's workers, and its Dask; write and print them."""
    others = values.given(args, "dtype", "plot")
    flags = [f"--{name}" for name in ("quick", "deep") if getattr(args, name)]
    if unused := [values.flag(name) for name in others] + flags:
        raise ValueError(f"--scheduler measures nothing of this machine: leave out {unused[0]}")
    with client_at(args.scheduler) as client, _show_measured(args) as show:
        profile = profile_with_cluster(older, client, show)
    write_profile(profile, path)
    between = {name: link for name, link in profile.links.items() if name in NOMINAL_LINKS}
    args.report.explain(*_links(between), _dask(profile.cluster_dask))
    args.report.wrote(path, "the profile with them")
    args.report.record(links=between, dask=profile.cluster_dask)
    return 0


def _present_profile() -> Profile | None:
    """Return the present profile, without the warning if it cannot be used: it is replaced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProfileWarning)
        return current_profile()


@contextlib.contextmanager
def _show_measured(args: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on a terminal what is being measured."""
    with show_steps(args.report.quiet) as show:
        yield lambda what: show(f"measuring {what}")


def report(profile: Profile) -> Iterator[str | Table]:
    """Yield the lines and tables that describe a profile."""
    machine = profile.machine
    gpus = counted(len(machine["gpus"]), "GPU")
    yield f"{machine['cpu']}, {counted(machine['cores'], 'core')}; {gpus}"
    for device in profile.devices:
        yield ""
        yield from _device(device)
    yield ""
    yield from _links(profile.links)
    yield _dask(profile.dask)


def _links(links: Mapping[str, LinkModel]) -> Iterator[str]:
    for name, link in links.items():
        yield f"{name.replace('_', ' ')}: {in_seconds(link.latency)} + bytes / {_rate(link)}"


def _dask(costs: DaskCosts) -> str:
    return f"Dask: {in_seconds(costs.start)} for a run, {in_seconds(costs.hop)} from task to task"


def _rate(link: Any) -> str:
    return f"{in_bytes(link.bandwidth)}/s"


def _device(device: MeasuredDevice) -> Iterator[str | Table]:
    model = device.model
    yield f"{device.title}, {model.dtype}"
    if device.disturbed:
        yield (
            f"  not used by plans: the machine was busy, so that samples differ by "
            f"{model.rates.spread:.0%}; probe again when it is not"
        )
    yield f"  from one call to the next: {in_seconds(model.issue_seconds)}"
    for name, value in device.figures.items():
        yield f"  {_figure(name, value)}"
    headings, left = ("", "kernel", "sizes", "least", "most", "spread"), ("", "kernel", "sizes")
    yield new_table(headings, [_kernel(table) for table in model.rates.tables], left=left)


def _figure(name: str, value: float) -> str:
    """Format one figure in its unit, which is the last part of its name."""
    what, _, unit = name.rpartition("_")
    shown = {
        "seconds": in_seconds(value),
        "bandwidth": f"{in_bytes(value)}/s",
        "ib": f"{value:.0f} columns by one kernel (ib)",
    }
    return f"{what.replace('_', ' ')}: {shown[unit]}"


def _kernel(table: RateTable) -> list[str]:
    """Return the least and largest rate over all sizes, and the median spread of the samples."""
    amounts = [work(table.kind, sizes) for sizes in table.points()]
    rates = [amount / s for amount, s in zip(amounts, table.seconds, strict=True)]
    unit = "flop/s" if SPECS[table.kind].operations else "elements/s"
    names = ", ".join(
        f"{name} {axis[0]}..{axis[-1]}"
        for name, axis in zip(size_names(table.kind), table.axes, strict=True)
    )
    spread = sorted(table.spreads)[len(table.spreads) // 2]
    least, most = in_units(min(rates), unit), in_units(max(rates), unit)
    return ["", table.kind, names, least, most, f"{spread:.1%}"]
