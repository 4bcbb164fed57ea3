"""Machines of many GPUs, in nodes on a network: described in a short file, not measured.

A panel goes from its GPU to the others first over the network, to one GPU of each node,
and from there inside the nodes.  On either level a `Fabric` says how long that takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from hetero_la.scheduler.device_model import H200, Chain, DeviceModel

#: GPUs whose figures a file may begin with.
GPUS = {"H200": H200}


class Broadcast(StrEnum):
    """How what one has comes to r others, in b bytes over links of alpha and beta.

    A transfer takes t = alpha + b / beta.  INDEPENDENT: t, as if the sender had a link to
    each.  DIRECT: all take it from the sender's one link: alpha + r b / beta.  TREE:
    whoever has it passes it on, and the i-th has it after t (floor(log2 i) + 1).
    PIPELINE: in pieces, along a chain: the i-th has it t after the first piece has
    come by the i - 1 before it.
    """

    INDEPENDENT = "independent"
    DIRECT = "direct"
    TREE = "tree"
    PIPELINE = "pipeline"


class Spread(NamedTuple):
    """A broadcast: when each one's transfer begins, and how long it keeps the link busy."""

    lag: np.ndarray
    hold: float


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links between equals.

    Attributes
    ----------
    latency : float
        Seconds.
    bandwidth : float
        Bytes/s of one link, one way.
    links : int
        Links that one message is spread over.
    broadcast : Broadcast
        How a panel reaches several.
    piece : float
        Bytes of a piece of a PIPELINE.

    Examples
    --------
    >>> fabric = Fabric(1e-5, 50e9, broadcast=Broadcast.TREE)
    >>> spread = fabric.spread(50e6, np.array([1, 2, 3, 4]), 4)
    >>> [round(1e3 * float(lag + spread.hold), 2) for lag in spread.lag]
    [1.01, 2.02, 2.02, 3.03]
    """

    latency: float
    bandwidth: float
    links: int = 1
    broadcast: Broadcast = Broadcast.DIRECT
    piece: float = 4e6

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be 0 s or more, not {self.latency}")
        for name in ("bandwidth", "links", "piece"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")

    def spread(self, nbytes: float, place: np.ndarray, others: int) -> Spread:
        """Bring bytes to `others`, who are counted from 1 in `place`; 0 is the sender."""
        rate = self.bandwidth * self.links
        hold = self.latency + nbytes / rate
        lag = np.zeros(len(place))
        if self.broadcast is Broadcast.DIRECT:
            hold = self.latency + others * nbytes / rate
        elif self.broadcast is Broadcast.TREE:
            lag = hold * np.floor(np.log2(np.maximum(place, 1)))
        elif self.broadcast is Broadcast.PIPELINE:
            first = self.latency + min(self.piece, nbytes) / rate
            lag = first * np.maximum(place - 1, 0)
        return Spread(lag, hold)


@dataclass(frozen=True)
class ClusterModel:
    """Equal nodes of equal GPUs.

    Attributes
    ----------
    name : str
        Of the machine.
    gpu : DeviceModel
        Each GPU's speed.
    memory : float
        Each GPU's bytes.
    gpus_per_node, nodes : int
        How many there are.
    node, network : Fabric
        Links inside a node, and between nodes.

    Examples
    --------
    >>> machine = ClusterModel.read({
    ...     "name": "two", "gpu": {"model": "H200", "memory": 141e9},
    ...     "node": {"gpus": 4, "latency": 1e-5, "bandwidth": 396e9},
    ...     "network": {"nodes": 2, "latency": 1e-5, "bandwidth": 50e9, "links": 4},
    ... })
    >>> machine.gpus, machine.network.broadcast
    (8, <Broadcast.DIRECT: 'direct'>)
    """

    name: str
    gpu: DeviceModel
    memory: float
    gpus_per_node: int
    nodes: int
    node: Fabric
    network: Fabric

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.gpus_per_node * self.nodes

    def spread(
        self, nbytes: float, sender: int, others: int, team: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lag and hold of each GPU of a `team`, 0, 1, ..., of which `others` get a message.

        It comes to one GPU of each node over the network, and from there to its neighbours.
        """
        size = self.gpus_per_node
        nodes = -(-len(team) // size)
        node, inside = (team // size - sender // size) % nodes, (team - sender) % size
        far = min((sender % size + others) // size, nodes - 1)
        there = self.network.spread(nbytes, node, far)
        here = self.node.spread(nbytes, inside, min(others, size - 1))
        lag = np.where(node > 0, there.lag, 0.0) + np.where(inside > 0, here.lag, 0.0)
        hold = np.where(node > 0, there.hold, 0.0) + np.where(inside > 0, here.hold, 0.0)
        return lag, hold

    @classmethod
    def read(cls, entries: dict[str, Any]) -> ClusterModel:
        """The machine that the entries of a file describe.

        Raises
        ------
        ValueError
            In one sentence, for an entry that is missing, unknown or out of range.
        """
        entries = _known(entries, "the machine", {"name", "gpu", "node", "network"})
        gpu = dict(_table(entries, "gpu"))
        node = dict(_table(entries, "node"))
        network = dict(entries.get("network", {"nodes": 1, "latency": 0.0, "bandwidth": 1e9}))
        memory = _number(gpu, "memory", "gpu")
        size, nodes = _count(node, "gpus", "node"), _count(network, "nodes", "network")
        return cls(
            str(entries.get("name", "unnamed")), _device(gpu), memory, size, nodes,
            _fabric(node, "node"), _fabric(network, "network"),
        )  # fmt: skip


def _known(entries: dict[str, Any], where: str, names: set[str]) -> dict[str, Any]:
    unknown = sorted(set(entries) - names)
    if unknown:
        raise ValueError(f"{unknown[0]!r} in {where} is none of {', '.join(sorted(names))}")
    return entries


def _table(entries: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(entries.get(name), dict):
        raise ValueError(f"a machine needs a table [{name}]")
    return dict(entries[name])


def _number(table: dict[str, Any], name: str, where: str) -> float:
    value = table.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} in [{where}] must be a number above 0, not {value!r}")
    return float(value)


def _count(table: dict[str, Any], name: str, where: str) -> int:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} in [{where}] must be a whole number above 0, not {value!r}")
    return int(table.pop(name))


def _device(table: dict[str, Any]) -> DeviceModel:
    """A known GPU, with the figures that the file gives instead."""
    model = table.pop("model", None)
    if model not in GPUS:
        raise ValueError(f"model in [gpu] must be one of {', '.join(GPUS)}, not {model!r}")
    figures = {field.name for field in fields(DeviceModel)} - {"kind", "dtype", "by_reference"}
    changed: dict[str, Any] = {}
    for name in _known(table, "[gpu]", figures):
        if name in ("panel", "inverse"):
            parts = _known(_table(table, name), f"[gpu.{name}]", set(Chain._fields))
            changed[name] = getattr(GPUS[model], name)._replace(**parts)
        else:
            value = table[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"{name} in [gpu] must be a number, 0 or more, not {value!r}")
            changed[name] = float(value)
    return replace(GPUS[model], **changed)


def _fabric(table: dict[str, Any], where: str) -> Fabric:
    _known(table, f"[{where}]", {field.name for field in fields(Fabric)})
    for name in ("latency", "bandwidth"):
        if name not in table:
            raise ValueError(f"[{where}] needs {name}")
    if "broadcast" in table:
        names = [rule.value for rule in Broadcast]
        if table["broadcast"] not in names:
            raise ValueError(
                f"broadcast in [{where}] must be one of {', '.join(names)}, "
                f"not {table['broadcast']!r}"
            )
        table["broadcast"] = Broadcast(table["broadcast"])
    for name in set(table) - {"broadcast"}:
        if isinstance(table[name], bool) or not isinstance(table[name], int | float):
            raise ValueError(f"{name} in [{where}] must be a number, not {table[name]!r}")
    return Fabric(**table)
