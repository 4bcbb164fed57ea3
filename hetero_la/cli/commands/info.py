"""Command ``info``: shows this machine and the defaults of a run on it, or a running cluster."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import hetero_la
from hetero_la.cli.common import values
from hetero_la.cli.common.cluster_report import (
    cluster_entries,
    describe_cluster,
    measured_pairs,
    pair_table,
    worker_table,
)
from hetero_la.scheduler.cluster.clients import client_at
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.tiles.arrays.counted import in_bytes
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.blas_threads import blas_libraries
from hetero_la.tiles.kernels.cpu.device import available_memory, usable_cores
from hetero_la.tiles.kernels.gpu.device import gpu_descriptions

_LIBRARIES = (
    "hetero-la", "numpy", "scipy", "dask", "distributed", "networkx", "threadpoolctl",
    "rich", "cupy-cuda12x", "cupy-cuda13x", "torch", "h5py", "zarr", "matplotlib",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "show devices, libraries, and the default workers, or the workers of a cluster"
    parser = values.add_command(
        commands, "info", info, summary, usage="[options]",
        examples=("", "--scheduler tcp://10.0.0.1:8786"),
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="show the workers of the Dask cluster with this scheduler, such as "
        "tcp://10.0.0.1:8786, and measure how fast they exchange panels",
    )  # fmt: skip


def info(args: argparse.Namespace) -> int:
    """Print the result of `describe_machine` or `describe_cluster`; return the exit status."""
    if args.scheduler is None:
        machine = describe_machine()
        args.report.record(**machine)
        args.report.show(*sections(machine))
        return 0
    with client_at(args.scheduler) as client:
        cluster, pairs = describe_cluster(client), measured_pairs(client)
        args.report.show(*sections({"cluster": cluster_entries(cluster)}))
        args.report.show("", worker_table(cluster.workers))
        measured = list(pairs)
        if measured:
            args.report.show("", pair_table(measured))
        args.report.record(**asdict(cluster), pairs=measured)
    return 0


def sections(named: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines that show sections of names and values."""
    for section, entries in named.items():
        yield section
        width = max((len(name) for name in entries), default=0)
        for name, value in entries.items():
            yield f"  {name.ljust(width)}  {_text(name, value)}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return in_bytes(value) if name == "memory available" else str(value)


def describe_machine() -> dict[str, dict[str, Any]]:
    """Return devices, memory, libraries, and the workers that a run has by default.

    Returns
    -------
    dict of str to dict
        Sections ``devices``, ``libraries`` and ``runs``, each with names and values: texts, lists
        of texts, numbers, and the memory in bytes.

    Examples
    --------
    >>> from hetero_la.cli.commands.info import describe_machine
    >>> list(describe_machine())
    ['devices', 'libraries', 'runs']
    """
    devices: dict[str, Any] = {
        "cpu cores": usable_cores(),
        "memory available": available_memory(),
        "gpus": gpu_count(),
    }
    devices |= {f"gpu {i}": text for i, text in enumerate(gpu_descriptions())}
    libraries = {"python": platform.python_version()}
    libraries |= {name: _version(name) for name in _LIBRARIES}
    blas = [
        f"{found['internal_api']} {found['version']} ({found['num_threads']} threads)"
        for found in blas_libraries()
    ]
    libraries["BLAS"] = ", ".join(dict.fromkeys(blas)) or "unknown"
    profile = current_profile()
    with hetero_la.Cluster() as cluster:
        workers = [str(name) for name in cluster.worker_spec]
    runs = {
        "workers by default": workers,
        "presets": list(hetero_la.available_presets()),
        "profile": f"measured {profile.measured}"
        if profile
        else "none: 'hetero-la probe' makes it",
    }
    return {"devices": devices, "libraries": libraries, "runs": runs}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
