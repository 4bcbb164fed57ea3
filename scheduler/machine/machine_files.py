"""Models of machines of many GPUs from a short file, as ``docs/how_to/scaling.md`` describes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from hetero_la.scheduler.machine.cluster_model import Broadcast, ClusterModel, Fabric
from hetero_la.scheduler.machine.device import CHAINS, H200, Chain, DeviceModel

#: GPUs from whose figures a file may start.
GPUS = {"H200": H200}

_DIVISORS = ("gemm_rate", "bandwidth", "single_speedup", "panel_slowdown")
_FIXED = ("kind", "dtype", "by_reference")  # the same for every GPU
_SINGLE_NODE = {"nodes": 1, "latency": 0, "bandwidth": 1}  # one node: the network is not used


def read_cluster(entries: Mapping[str, Any]) -> ClusterModel:
    """Return the model of the machine that the entries of a file describe.

    Raises
    ------
    ValueError
        In one sentence, for an entry that is missing, unknown or out of range.

    Examples
    --------
    >>> machine = read_cluster({
    ...     "name": "two", "gpu": {"model": "H200", "memory": 141e9},
    ...     "node": {"gpus": 4, "latency": 1e-5, "bandwidth": 396e9},
    ...     "network": {"nodes": 2, "latency": 1e-5, "bandwidth": 50e9, "links": 4},
    ... })
    >>> machine.gpus, machine.network.broadcast
    (8, <Broadcast.DIRECT: 'direct'>)
    """
    _require_known(entries, "a machine", ("name", "gpu", "node", "network"))
    gpu, node = _table(entries, "gpu"), _table(entries, "node")
    network = _table({"network": _SINGLE_NODE, **entries}, "network")
    return ClusterModel(
        str(entries.get("name", "unnamed")), _device(gpu), _number(gpu, "gpu", "memory"),
        _count(node, "node", "gpus"), _count(network, "network", "nodes"),
        _fabric(node, "node", "gpus"), _fabric(network, "network", "nodes"),
    )  # fmt: skip


def _require_known(table: Iterable[str], where: str, names: Iterable[str]) -> None:
    if unknown := sorted(set(table) - set(names)):
        raise ValueError(f"{unknown[0]!r} in {where} is none of {', '.join(sorted(names))}")


def _table(entries: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(entries.get(name), dict):
        raise ValueError(f"a machine needs a table [{name}]")
    return dict(entries[name])


def _number(table: Mapping[str, Any], where: str, name: str, *, zero: bool = False) -> float:
    """Return an entry as a float; raise ValueError unless it is positive, or 0 where `zero`."""
    value = table.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (0 < value < math.inf or (zero and value == 0))
    ):
        least = "0 or more" if zero else "above 0"
        raise ValueError(f"{name} in [{where}] must be a number, {least}, not {value!r}")
    return float(value)


def _count(table: Mapping[str, Any], where: str, name: str) -> int:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} in [{where}] must be a whole number above 0, not {value!r}")
    return value


def _device(table: Mapping[str, Any]) -> DeviceModel:
    """Return the model of a known GPU with the figures of the file in place of its own."""
    model = table.get("model")
    if model not in GPUS:
        raise ValueError(f"model in [gpu] must be one of {', '.join(GPUS)}, not {model!r}")
    figures = {field.name for field in fields(DeviceModel)}.difference(_FIXED)
    _require_known(table, "[gpu]", figures | {"model", "memory"})
    changed: dict[str, Any] = {}
    for name in figures.intersection(table):
        if name in CHAINS:
            parts, where = _table(table, name), f"gpu.{name}"
            _require_known(parts, f"[{where}]", Chain._fields)
            given = {part: _number(parts, where, part, zero=True) for part in parts}
            changed[name] = getattr(GPUS[model], name)._replace(**given)
        else:
            changed[name] = _number(table, "gpu", name, zero=name not in _DIVISORS)
    return replace(GPUS[model], **changed)


def _fabric(table: Mapping[str, Any], where: str, size: str) -> Fabric:
    """Return the links of a table, in which the entry `size` says how many devices they join."""
    _require_known(table, f"[{where}]", [size, *(field.name for field in fields(Fabric))])
    whole = {field.name: field.default for field in fields(Fabric)} | dict(table)
    rules = [rule.value for rule in Broadcast]
    if whole["broadcast"] not in rules:
        raise ValueError(
            f"broadcast in [{where}] must be one of {', '.join(rules)}, not {whole['broadcast']!r}"
        )
    return Fabric(
        _number(table, where, "latency", zero=True), _number(table, where, "bandwidth"),
        _count(whole, where, "links"), Broadcast(whole["broadcast"]),
        _number(whole, where, "piece"),
    )  # fmt: skip
