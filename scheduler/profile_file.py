"""Profiles in files: JSON, as ``docs/prediction.md`` describes it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_la.scheduler.costs import DaskCosts, LinkModel
from hetero_la.scheduler.device_model import Chain, DeviceModel
from hetero_la.scheduler.profile import MeasuredDevice, Profile, Tuning
from hetero_la.scheduler.rates import MEASURABLE, KernelRates, RateTable
from hetero_la.tiles.tile_sizes import sizes_text, tile_sizes

#: Of the file; another number is another format, or other ways to measure its figures.
FORMAT = 3
#: Formats that can be read: in 2, no tuning has several tile sizes.
_READABLE = (2, FORMAT)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(json.dumps(_encoded(profile), indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Raises
    ------
    ValueError
        In one sentence, if it is none.
    OSError
        If the file cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] not in _READABLE:
            known = " or ".join(map(str, _READABLE))
            raise ValueError(f"format {content['format']!r} is not {known}")
        return _decoded(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a profile: {error!r}") from error
    except ValueError as error:  # json's own among them
        raise ValueError(f"{path} is not a profile that can be read: {error}") from error


def _encoded(profile: Profile) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "machine": profile.machine,
        "measured": profile.measured,
        "devices": [_encoded_device(device) for device in profile.devices],
        "links": {name: dataclasses.asdict(link) for name, link in profile.links.items()},
        "dask": profile.dask._asdict(),
        "tunings": [_encoded_tuning(tuning) for tuning in profile.tunings],
    }


def _encoded_device(device: MeasuredDevice) -> dict[str, Any]:
    model = {
        f.name: getattr(device.model, f.name)
        for f in dataclasses.fields(device.model)
        if f.name != "rates"
    }
    kernels = [
        {"kernel": table.kind, "sizes": MEASURABLE[table.kind].names, **dataclasses.asdict(table)}
        for table in device.model.rates.tables
    ]
    for kernel in kernels:
        del kernel["kind"]
    return {**device._asdict(), "model": model, "kernels": kernels}


def _encoded_tuning(tuning: Tuning) -> dict[str, Any]:
    several = not isinstance(tuning.nb, int)
    return {**tuning._asdict(), "nb": sizes_text(tuning.nb) if several else tuning.nb}


def _decoded(content: Mapping[str, Any]) -> Profile:
    if not isinstance(content["machine"], dict):
        raise ValueError(f"its machine is {content['machine']!r}, and not an object")
    return Profile(
        content["machine"],
        content["measured"],
        tuple(_decoded_device(device) for device in content["devices"]),
        {name: LinkModel(**link) for name, link in content["links"].items()},
        DaskCosts(**content["dask"]),
        tuple(
            Tuning(**{**tuning, "nb": tile_sizes(tuning["nb"])}) for tuning in content["tunings"]
        ),
    )


def _decoded_device(entry: dict[str, Any]) -> MeasuredDevice:
    figures = dict(entry["model"])
    for chain in ("panel", "inverse"):
        figures[chain] = Chain(*figures[chain])
    tables = tuple(
        RateTable(
            kernel["kernel"],
            tuple(tuple(axis) for axis in kernel["axes"]),
            tuple(kernel["seconds"]),
            tuple(kernel["spreads"]),
        )
        for kernel in entry["kernels"]
    )
    model = DeviceModel(**figures, rates=KernelRates(tables))
    return MeasuredDevice(
        entry["name"], entry["threads"], entry["beside"], model, dict(entry["figures"])
    )
