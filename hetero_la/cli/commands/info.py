"""Command ``info``: shows this machine and the defaults of a run on it, or a running cluster."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
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
    pair_lines,
    worker_lines,
)
from hetero_la.scheduler.cluster.clients import client_at
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.blas import blas_libraries
from hetero_la.tiles.kernels.cpu.device import available_memory, usable_cores
from hetero_la.tiles.kernels.gpu.device import gpu_descriptions

_LIBRARIES = (
    "hetero-la", "numpy", "scipy", "dask", "distributed", "networkx", "threadpoolctl",
    "cupy-cuda12x", "cupy-cuda13x", "h5py", "zarr", "matplotlib",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    summary = "show devices, libraries, and the default workers, or the workers of a cluster"
    parser = values.add_command(commands, "info", info, summary)
    parser.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="show the workers of the Dask cluster with this scheduler, as tcp://10.0.0.1:8786, "
        "and measure how fast they exchange panels",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def info(args: argparse.Namespace) -> int:
    """Print the result of `describe_machine` or `describe_cluster`; return the exit status."""
    if args.scheduler is None:
        machine = describe_machine()
        print(json.dumps(machine, indent=2) if args.json else "\n".join(sections(machine)))
        return 0
    with client_at(args.scheduler) as client:
        cluster, pairs = describe_cluster(client), measured_pairs(client)
        if args.json:
            found = asdict(cluster) | {"pairs": [asdict(pair) for pair in pairs]}
            print(json.dumps(found, indent=2))
            return 0
        print(*sections({"cluster": cluster_entries(cluster)}), sep="\n")
        print("", *worker_lines(cluster.workers), sep="\n", flush=True)
        if len(cluster.workers) > 1:
            print("", *pair_lines(pairs), sep="\n")
    return 0


def sections(named: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield the lines that show sections of names and texts."""
    for section, entries in named.items():
        yield section
        width = max((len(name) for name in entries), default=0)
        for name, value in entries.items():
            yield f"  {name.ljust(width)}  {value}"


def describe_machine() -> dict[str, dict[str, str]]:
    """Return devices, memory, libraries, and the workers that a run has by default.

    Returns
    -------
    dict of str to dict of str to str
        Sections ``devices``, ``libraries`` and ``runs``, each with names and texts.

    Examples
    --------
    >>> from hetero_la.cli.commands.info import describe_machine
    >>> list(describe_machine())
    ['devices', 'libraries', 'runs']
    """
    devices = {
        "cpu cores": str(usable_cores()),
        "memory available": f"{available_memory() / 1e9:.1f} GB",
        "gpus": str(gpu_count()),
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
        workers = ", ".join(str(name) for name in cluster.worker_spec)
    runs = {
        "workers by default": workers,
        "presets": ", ".join(hetero_la.available_presets()),
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
