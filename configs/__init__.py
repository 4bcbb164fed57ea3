"""Presets of workers and runs, in Dask's configuration format, and machines to predict runs on.

A ``.yaml`` file here may also be copied to ``~/.config/dask/``, where Dask reads it as the
user's own defaults.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import yaml

from hetero_la.tiles.arrays.names import unknown_name

_SUFFIX, _MACHINE = ".yaml", ".toml"


def available_presets() -> list[str]:
    """Names that `load_preset` takes.

    Examples
    --------
    >>> from hetero_la.configs import available_presets
    >>> available_presets()
    ['cpu-panel', 'four-gpus', 'laptop', 'one-gpu']
    """
    return _available(_SUFFIX)


def available_machines() -> list[str]:
    """Names that `load_machine` takes.

    Examples
    --------
    >>> from hetero_la.configs import available_machines
    >>> available_machines()
    ['dgx-h200', 'dgx-h200-x128', 'h200']
    """
    return _available(_MACHINE)


def _available(suffix: str) -> list[str]:
    names = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))


def load_preset(name: str) -> dict[str, Any]:
    """Read a preset.

    Parameters
    ----------
    name : str
        One of `available_presets`.

    Returns
    -------
    dict
        Two mappings: ``cluster`` (what `hetero_la.Cluster` takes) and ``options``
        (what a run takes), with the keys as in the file.

    Examples
    --------
    >>> from hetero_la.configs import load_preset
    >>> load_preset("one-gpu")["cluster"]["gpus"]
    1
    """
    if name not in available_presets():
        raise ValueError(unknown_name("preset ", name, available_presets()))
    text = (files(__name__) / (name + _SUFFIX)).read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["hetero-la"])


def load_machine(name: str) -> dict[str, Any]:
    """Read the description of a machine.

    Parameters
    ----------
    name : str
        One of `available_machines`.

    Returns
    -------
    dict
        The tables ``gpu``, ``node`` and ``network``, and the ``name``, as in the file.

    Examples
    --------
    >>> from hetero_la.configs import load_machine
    >>> load_machine("dgx-h200")["node"]["gpus"]
    8
    """
    if name not in available_machines():
        raise ValueError(unknown_name("machine ", name, available_machines()))
    return tomllib.loads((files(__name__) / (name + _MACHINE)).read_text(encoding="utf-8"))
