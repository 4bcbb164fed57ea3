"""Machine and run presets, in Dask's configuration format.

A file here may also be copied to ``~/.config/dask/``, where Dask reads it as the
user's own defaults.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

_SUFFIX = ".yaml"


def available_presets() -> list[str]:
    """Names that `load_preset` takes.

    Examples
    --------
    >>> from hetero_la.configs import available_presets
    >>> available_presets()
    ['cpu-panel', 'four-gpus', 'laptop', 'one-gpu']
    """
    names = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


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
        raise ValueError(f"unknown preset {name!r}: choose from {', '.join(available_presets())}")
    text = (files(__name__) / (name + _SUFFIX)).read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["hetero-la"])
