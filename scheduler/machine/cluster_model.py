"""Models of machines of many GPUs, in nodes on a network: described, not measured.

A panel goes from its GPU to the others first over the network, to one GPU of each node,
and from there inside the nodes.  On either level a `Fabric` gives the time of that.  Where both
pass it on in pieces, all GPUs are one chain, as in a ring of NCCL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.tiles.arrays.counted import counted
from hetero_la.tiles.arrays.displayed import as_html, one_line


class Broadcast(StrEnum):
    """Algorithm by which b bytes reach r receivers over links of latency alpha, bandwidth beta.

    One transfer takes t = alpha + b / beta.  INDEPENDENT: each receiver has the data after t,
    as if the sender had a link to each.  DIRECT: all share the sender's one link:
    alpha + r b / beta.  FIRST: the receiver that needs the data first has that link to itself,
    then the others share it.  TREE: each receiver sends on what it has, and the i-th has the
    data after t (floor(log2 i) + 1).  PIPELINE: in pieces of c bytes along a chain; the i-th has
    the first piece after i (alpha + c / beta), and the others (b - c) / beta later: i + b / c - 1
    steps of a piece, but for the latency, which only the first piece shows.
    """

    INDEPENDENT = "independent"
    DIRECT = "direct"
    FIRST = "first"
    TREE = "tree"
    PIPELINE = "pipeline"


class BroadcastTimes(NamedTuple):
    """Each receiver's earliest start, and the time for which its transfer occupies the link."""

    lag: np.ndarray
    hold: np.ndarray


class PieceTimes(NamedTuple):
    """Times over one link: of a message's first piece, and of all others after it."""

    first: float
    others: float


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links between equal devices or nodes, and the broadcast over them.

    Attributes
    ----------
    latency : float
        Seconds.
    bandwidth : float
        Bytes/s of one link, one way.
    links : int
        Links over which one message is divided.
    broadcast : Broadcast
        Algorithm by which a panel reaches several receivers.
    piece : float
        Bytes of a piece of a PIPELINE.

    Examples
    --------
    >>> fabric = Fabric(1e-5, 50e9, broadcast=Broadcast.TREE)
    >>> times = fabric.broadcast_times(50e6, np.array([1, 2, 3, 4]), 4)
    >>> [round(1e3 * float(seconds), 2) for seconds in times.lag + times.hold]
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

    def broadcast_times(self, nbytes: float, place: np.ndarray, others: int) -> BroadcastTimes:
        """Return the times of a broadcast to `others` receivers, numbered from 1 in `place`."""
        rate = self.bandwidth * self.links
        one = self.latency + nbytes / rate
        lag, hold = np.zeros(len(place)), np.full(len(place), one)
        if self.broadcast is Broadcast.DIRECT:
            hold[:] = self.latency + others * nbytes / rate
        elif self.broadcast is Broadcast.FIRST:
            lag[place > 1] = one
            hold[place > 1] = self.latency + (others - 1) * nbytes / rate
        elif self.broadcast is Broadcast.TREE:
            lag = one * np.floor(np.log2(np.maximum(place, 1)))
        elif self.broadcast is Broadcast.PIPELINE:
            lag = self.piece_times(nbytes).first * np.maximum(place - 1, 0)
        return BroadcastTimes(lag, hold)

    def piece_times(self, nbytes: float) -> PieceTimes:
        """Return the times of a message in a pipeline, in which each link holds a piece of it."""
        rate, piece = self.bandwidth * self.links, min(self.piece, nbytes)
        return PieceTimes(self.latency + piece / rate, (nbytes - piece) / rate)


@dataclass(frozen=True, repr=False)
class ClusterModel:
    """Equal nodes of equal GPUs.

    Attributes
    ----------
    name : str
        Of the machine.
    gpu : DeviceModel
        Speed of each GPU.
    memory : float
        Memory of each GPU, in bytes.
    gpus_per_node, nodes : int
        Number of GPUs of a node, and of nodes.
    node, network : Fabric
        Links inside a node, and between nodes.

    Examples
    --------
    >>> from hetero_la.scheduler.machine.device import H200
    >>> inside, between = Fabric(1e-5, 396e9), Fabric(1e-5, 50e9, links=4)
    >>> ClusterModel("two nodes", H200, 141e9, 4, 2, inside, between).gpus
    8
    """

    name: str
    gpu: DeviceModel
    memory: float
    gpus_per_node: int
    nodes: int
    node: Fabric
    network: Fabric

    _repr_html_ = as_html

    def __repr__(self) -> str:
        size = f"{counted(self.nodes, 'node')} of {counted(self.gpus_per_node, 'GPU')}"
        return one_line("ClusterModel", self.name, size)

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.gpus_per_node * self.nodes

    def broadcast_times(
        self, nbytes: float, sender: int, others: int, team: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the times of a message to `others` of the GPUs 0, 1, ... of `team`.

        It comes to one GPU of each node over the network, and from there to its neighbours, or
        along one chain to all of them.
        Returns lag and hold of each GPU, see `BroadcastTimes`, and the network's fraction of both.
        """
        size = self.gpus_per_node
        nodes = -(-len(team) // size)
        rules = {self.node.broadcast, self.network.broadcast}
        if rules == {Broadcast.PIPELINE} and nodes > 1 and size > 1:
            return self._chain_times(nbytes, sender, team)
        node, inside = (team // size - sender // size) % nodes, (team - sender) % size
        far = min((sender % size + others) // size, nodes - 1)
        there = self.network.broadcast_times(nbytes, node, far)
        here = self.node.broadcast_times(nbytes, inside, min(others, size - 1))
        outside, within = node > 0, inside > 0
        lag = there.lag * outside + here.lag * within
        hold = there.hold * outside + here.hold * within
        whole = np.maximum(lag + hold, np.finfo(float).tiny)
        return lag, hold, (there.lag + there.hold) * outside / whole

    def _chain_times(
        self, nbytes: float, sender: int, team: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the times of a message along all GPUs, from the sender's neighbour on.

        The first piece takes its time on each link that it passes; the others follow at the pace
        of the slower kind of link.
        """
        size, count = self.gpus_per_node, len(team)
        node, network = self.node.piece_times(nbytes), self.network.piece_times(nbytes)
        crossed = team // size - sender // size + -(-count // size) * (team < sender)
        inside = (team - sender) % count - crossed
        outside = network.first * crossed
        first, others = node.first * inside + outside, max(node.others, network.others)
        if network.others > node.others:
            outside = outside + others * (crossed > 0)
        hold = first[(sender + 1) % count] + others
        whole = np.maximum(first + others, np.finfo(float).tiny)
        return np.maximum(whole - hold, 0.0), np.full(count, hold), outside / whole
