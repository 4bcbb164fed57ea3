"""The profile of this machine: its file, and whether it fits the machine as it is.

It is ``machine-<hash>.json`` in ``hetero-la`` of the user's cache directory
(``$XDG_CACHE_HOME``, or ``~/.cache``): a name for each kind of machine, so that machines
may share a home.  ``$HETERO_LA_PROFILE`` names another file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_la.scheduler.machine.identity import HARDWARE, machine_identity
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.machine.profile import Profile
from hetero_la.scheduler.machine.profile_file import read_profile
from hetero_la.scheduler.placement.workers import WorkerInfo, over_processes

_VARIABLE = "HETERO_LA_PROFILE"


class ProfileWarning(UserWarning):
    """Warning about a profile that cannot be used, or may have been measured wrongly."""


def profile_path() -> Path:
    """Return the path of this machine's profile, whether there is one or not."""
    if named := os.environ.get(_VARIABLE):
        return Path(named)
    text = json.dumps([machine_identity()[key] for key in HARDWARE])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return _folder() / f"machine-{digest}.json"


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hetero-la"


def mismatch(profile: Profile) -> str:
    """Return why a profile does not fit this machine as it is now; empty if it does."""
    here = machine_identity()
    for key, value in here.items():
        if profile.machine.get(key) != value:
            what = "another machine" if key in HARDWARE else "another version"
            return f"it is of {what}: {key} {profile.machine.get(key)!r}, here {value!r}"
    return ""


def current_profile() -> Profile | None:
    """Return the profile of this machine, if there is one that can be used.

    Warns with `ProfileWarning`, once in a process, if there is one that cannot be used.
    """
    # Without a folder of profiles there is no need to identify the machine, which takes a while.
    try:
        if _VARIABLE not in os.environ and not os.path.isdir(_folder()):
            return None
        path = profile_path()
        changed = path.stat().st_mtime_ns
    except (OSError, RuntimeError):  # there is no home directory, or it cannot be read
        return None
    return _usable(path, changed)


@functools.lru_cache(maxsize=4)
def _usable(path: Path, changed: int) -> Profile | None:
    """Return the profile in a file; `changed`, when it was written, is a key of the cache."""
    try:
        profile = read_profile(path)
        reason = mismatch(profile)
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        warnings.warn(
            f"the profile {path} is not used: {reason}; 'hetero-la probe' makes a new one",
            ProfileWarning,
            stacklevel=2,
        )
        return None
    return profile


def with_profile(
    model: MachineModel, workers: Sequence[WorkerInfo], dtype: Any
) -> tuple[MachineModel, list[bool]]:
    """Return `model` with this machine's profile, and which of the workers the profile has."""
    known = [False] * len(workers)
    profile = current_profile()
    if profile is None:
        return model, known
    devices = list(model.devices)
    for place, worker in enumerate(workers):
        if not _is_here(worker):
            continue
        measured = profile.device(*_profile_key(worker), dtype)
        if measured is not None:
            by_reference = devices[place].by_reference
            devices[place] = replace(measured, by_reference=by_reference)
            known[place] = True
    return replace(
        model,
        devices=tuple(devices),
        host_link=profile.links.get("host_to_gpu", model.host_link),
        load_link=profile.links.get("pageable_to_gpu", model.load_link),
        store_link=profile.links.get("gpu_to_pageable", model.store_link),
        new_link=profile.links.get("gpu_to_new", model.new_link),
        pinning=profile.links.get("pinning", model.pinning),
        pinning_new=profile.links.get("pinning_new", model.pinning_new),
        peer_link=profile.links.get("gpu_to_gpu", model.peer_link),
        links={name: profile.links.get(name, link) for name, link in model.links.items()},
        dask=profile.cluster_dask if over_processes(workers) else profile.dask,
        measured=profile.measured if any(known) else "",
    ), known


def best_inner_blocking(worker: WorkerInfo, panel: str, dtype: Any) -> int | None:
    """Return the fastest inner blocking `ib` of a GPU's panel kernel, if the profile has it.

    Examples
    --------
    >>> best_inner_blocking(WorkerInfo("cpu0", "cpu"), "getrf", "float64") is None
    True
    """
    profile = current_profile()
    if profile is None or not _is_here(worker):
        return None
    best = profile.figures(*_profile_key(worker), dtype).get(f"{panel}_ib")
    return None if best is None else int(best)


def _is_here(worker: WorkerInfo) -> bool:
    return not worker.host or worker.host == platform.node()


def _profile_key(worker: WorkerInfo) -> tuple[str, int]:
    """Return the key of a worker's entry in a profile: a GPU's name, or BLAS threads."""
    gpus = machine_identity()["gpus"]
    if worker.has_gpu:
        return (gpus[worker.device] if 0 <= worker.device < len(gpus) else "no such GPU"), 0
    return "", worker.blas_threads
