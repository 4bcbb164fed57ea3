"""The workers of a command: those of a running cluster, or those that its options define."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import hetero_la
from hetero_la.cli.common.values import WORKERS, given
from hetero_la.scheduler.cluster.clients import client_at
from hetero_la.tiles.arrays.names import unknown_name


@contextlib.contextmanager
def asked_for(args: argparse.Namespace) -> Iterator[Any]:
    """Connect to the cluster that `args` name, or start the workers; yield a client, or None."""
    wanted = given(args, *WORKERS, "preset", "dashboard_address")
    if args.scheduler is not None:
        with client_at(args.scheduler) as client:
            yield client
    elif wanted:
        _require_preset(wanted.get("preset"))
        with hetero_la.Cluster(**wanted) as cluster, cluster.get_client() as client:
            yield client
    else:
        yield None


def _require_preset(name: str | None) -> None:
    if name is not None and name not in (known := hetero_la.available_presets()):
        raise ValueError(unknown_name("preset ", name, known))
