"""Messages between workers of different processes: by NCCL, or through host memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from hetero_la.scheduler.exchange.gpu_channel import Targets
from hetero_la.scheduler.exchange.group import Arrived, RunGroup
from hetero_la.scheduler.exchange.port import Incoming, Port
from hetero_la.scheduler.program.instructions import ReceiveMessage
from hetero_la.scheduler.program.messages import Message, MessageKey
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue


class OnHost(NamedTuple):
    """A message in host memory that goes back to the sender, so that it is always copied."""

    arrived: Arrived
    reader: Device

    def reference(self, place: int) -> Array | None:
        """Return None: the memory is not the reader's."""
        return None

    def copy(self, place: int, target: Array) -> None:
        """Enqueue a copy of an array on the reader's COPY queue."""
        self.reader.copy(target, self.arrived.arrays[place], Queue.COPY)


class ProcessPort(Port):
    """Port of a worker whose run's other workers are in other processes.

    Parameters
    ----------
    group : RunGroup
        The run's workers.
    device : Device
        The worker's device.
    """

    def __init__(self, group: RunGroup, device: Device) -> None:
        self._group, self._device = group, device

    def check_in(self) -> None:
        """Raise RunAbortedError if the run was aborted; note that it goes on."""
        self.check()
        self._group.inbox.note_progress()

    def check(self) -> None:
        """Raise RunAbortedError if the run was aborted."""
        self._group.inbox.check()

    def offer(self, message: Message, arrays: list[Array], queue: Queue) -> None:
        """Send a message to its consumers, first to the one whose next panel needs it."""
        channels = self._group.channels
        consumers = sorted(message.consumers, key=lambda consumer: consumer != message.first)
        if channels.keys() & message.consumers:
            ready = self._device.record(queue)
        if message.consumers - channels.keys():
            self._device.synchronize()  # it has come to this message then
            copies = [np.asarray(to_host(array), order="F") for array in arrays]
        for consumer in consumers:
            if consumer in channels:
                send = partial(channels[consumer].send_message, message.key, arrays, ready)
                self._group.call(partial(self._group.order.send, message.key, consumer, send))
            else:
                self._group.post(consumer, message.key, copies)

    @contextlib.contextmanager
    def taking(self, message: Message, receive: ReceiveMessage) -> Iterator[Incoming]:
        """Take a message in the block."""
        channel = self._group.channels.get(message.key.source)
        if channel is not None:
            targets = Targets()
            yield targets
            take = partial(channel.receive, targets, len(message.parts))
            source = message.key.source
            self._group.call(partial(self._group.order.receive, message.key, source, take))
            return
        arrived = self._group.inbox.take(message.key)
        try:
            yield OnHost(arrived, self._device)
            self._device.synchronize()
        finally:
            arrived.release()

    def taken(self, key: MessageKey, consumer: int) -> Event:
        """Return when a message to `consumer` has left: what went through the host has."""
        channel = self._group.channels.get(consumer)
        return None if channel is None else channel.sent(key)

    def flush(self) -> None:
        """Wait until all messages have left."""
        for channel in self._group.channels.values():
            self._group.call(channel.flush)
