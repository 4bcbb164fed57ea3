"""User arrays into and out of shards."""

from __future__ import annotations

from hetero_la.tiles.kernels.spec import Array, Device, Queue


def upload(device: Device, target: Array, source: Array) -> None:
    """Copy columns of a user's array, in any memory order, into a shard."""
    device.copy(target, source, Queue.COPY)


def download(device: Device, target: Array, source: Array) -> None:
    """Copy columns of a shard into a column-major user's array."""
    device.copy(target, source, Queue.COPY)
