"""Profiles in files: JSON, as ``docs/how_to/prediction.md`` describes it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.scheduler.machine.atomic_files import atomic_replacement
from hetero_la.scheduler.machine.device import CHAINS, Chain, DeviceModel
from hetero_la.scheduler.machine.model import NOMINAL_CLUSTER_DASK, DaskCosts, LinkModel
from hetero_la.scheduler.machine.profile import MeasuredDevice, Profile, Tuning
from hetero_la.scheduler.machine.rate_tables import KernelRates, RateTable, size_names
from hetero_la.tiles.storage.tile_sizes import sizes_text, tile_sizes

#: Version of the file: it changes with the format and with how figures are measured.
FORMAT = 5
#: Figures that are used as divisors.
_POSITIVE = frozenset(
    ("gemm_rate", "bandwidth", "load_bandwidth", "turn_bandwidth", "single_speedup", "sustained")
)
#: Entries of a model, and those that are not numbers.
_FIGURES = [
    field.name
    for field in dataclasses.fields(DeviceModel)
    if field.name not in ("rates", "products")
]
_WORDS = frozenset(("kind", "dtype", "by_reference", *CHAINS))


def require_regular(path: Path) -> None:
    """Raise OSError if `path` exists and is not a regular file: a pipe, a device, a folder."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile, complete or not at all."""
    require_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replacement(path) as unfinished:
        unfinished.write_text(
            json.dumps(encoded_profile(profile), indent=1) + "\n", encoding="utf-8"
        )


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Raises
    ------
    ValueError
        In one sentence, if the file is not a profile.
    OSError
        If the file cannot be read.
    """
    require_regular(path)  # reading a pipe might never end
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r} is not {FORMAT}")
        return _decoded(content)
    except KeyError as error:
        raise ValueError(f"{path} is not a profile: it has no {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is not a profile: it is nested too deeply") from error
    except (TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"{path} is not a profile: {error}") from error
    except ValueError as error:  # json's own among them
        raise ValueError(f"{path} is not a profile that can be read: {error}") from error


def encoded_profile(profile: Profile) -> dict[str, Any]:
    """Return a profile as its file holds it."""
    return {
        "format": FORMAT,
        "machine": profile.machine,
        "measured": profile.measured,
        "devices": [_encoded_device(device) for device in profile.devices],
        "links": {name: dataclasses.asdict(link) for name, link in profile.links.items()},
        "dask": profile.dask._asdict(),
        "cluster_dask": profile.cluster_dask._asdict(),
        "tunings": [_encoded_tuning(tuning) for tuning in profile.tunings],
    }


def _encoded_device(device: MeasuredDevice) -> dict[str, Any]:
    model = {name: getattr(device.model, name) for name in _FIGURES}
    tables = [dataclasses.asdict(table) for table in device.model.rates.tables]
    kernels = [
        {"kernel": (kind := table.pop("kind")), "sizes": size_names(kind), **table}
        for table in tables
    ]
    return {**device._asdict(), "model": model, "kernels": kernels}


def _encoded_tuning(tuning: Tuning) -> dict[str, Any]:
    several = not isinstance(tuning.nb, int)
    return {**tuning._asdict(), "nb": sizes_text(tuning.nb) if several else tuning.nb}


def _decoded(content: Mapping[str, Any]) -> Profile:
    if not isinstance(content["machine"], dict):
        raise ValueError(f"its machine is {content['machine']!r}, and not an object")
    # Earlier profiles of this format have none.
    cluster_dask = content.get("cluster_dask", NOMINAL_CLUSTER_DASK._asdict())
    _require_figures(content["dask"], "dask")
    _require_figures(cluster_dask, "cluster_dask")
    for name, link in content["links"].items():
        _require_figures(link, name)
    return Profile(
        content["machine"],
        content["measured"],
        tuple(_decoded_device(device) for device in content["devices"]),
        {name: LinkModel(**link) for name, link in content["links"].items()},
        DaskCosts(**content["dask"]),
        DaskCosts(**cluster_dask),
        tuple(map(_decoded_tuning, content["tunings"])),
    )


def _require_figures(figures: Mapping[str, Any], of: str) -> None:
    """Raise ValueError unless all are finite numbers, and those used as divisors positive."""
    for name, value in figures.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise ValueError(f"{name} of {of} is {value!r}, and not a finite number")
        if name in _POSITIVE and value <= 0:
            raise ValueError(f"{name} of {of} is {value!r}, and not positive")


def _decoded_tuning(entry: Mapping[str, Any]) -> Tuning:
    tuning = Tuning(**{**entry, "nb": tile_sizes(entry["nb"])})
    depth = tuning.lookahead
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise ValueError(f"the look-ahead of a tuning is {depth!r}, and not a whole number")
    nb, coarse = tuning.nb, tuning.coarse
    if coarse is not None and not (isinstance(nb, int) and isinstance(coarse, int) and coarse > 0):
        raise ValueError(f"a tuning has blocks of {coarse!r} columns, with nb = {nb!r}")
    _require_figures({"seconds": tuning.seconds}, "a tuning")
    return tuning


def _decoded_device(entry: dict[str, Any]) -> MeasuredDevice:
    figures = dict(entry["model"])
    _require_model(figures, entry["name"] or "the CPU")
    for chain in CHAINS:
        figures[chain] = Chain(*figures[chain])
    tables = tuple(
        RateTable(
            kernel["kernel"],
            tuple(map(tuple, kernel["axes"])),
            tuple(kernel["seconds"]),
            tuple(kernel["spreads"]),
        )
        for kernel in entry["kernels"]
    )
    _require_figures(entry["figures"], entry["name"] or "the CPU")
    model = DeviceModel(**figures, rates=KernelRates(tables))
    return MeasuredDevice(
        entry["name"], entry["threads"], entry["beside"], model, dict(entry["figures"])
    )


def _require_model(figures: Mapping[str, Any], of: str) -> None:
    """Raise ValueError or KeyError unless a model's entries are complete and valid."""
    if figures["kind"] not in ("cpu", "gpu"):
        raise ValueError(f"the kind of {of} is {figures['kind']!r}, and neither cpu nor gpu")
    if missing := sorted(set(_FIGURES).difference(figures)):
        raise ValueError(f"the model of {of} has no {missing[0]}")
    np.dtype(figures["dtype"])  # raises TypeError unless it names a dtype
    _require_figures({k: v for k, v in figures.items() if k not in _WORDS}, of)
    for chain in CHAINS:
        _require_figures(Chain(*figures[chain])._asdict(), f"{chain} of {of}")
