"""Messages between two GPUs of different processes, enqueued at both ends."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.tiles.kernels.device import Array, Communicator, Event


class GpuChannel:
    """Both directions between a worker and another one.

    What comes first at one end of a communicator has to come first at the other.

    Parameters
    ----------
    outgoing, incoming : Communicator
        The directions.
    """

    def __init__(self, outgoing: Communicator, incoming: Communicator) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._sent: dict[MessageKey, Event] = {}

    def send_message(self, key: MessageKey, arrays: Sequence[Array], ready: Event) -> None:
        """Send a message once `ready` has come to pass."""
        self._sent[key] = self._outgoing.send(arrays, ready)

    def sent(self, key: MessageKey) -> Event:
        """Return the event of a message having left the sender's memory."""
        return self._sent[key]

    def receive(self, targets: Targets, parts: int) -> None:
        """Receive the next message, of so many parts, where `targets` say."""
        self._incoming.receive([targets.arrays[place] for place in range(parts)])

    def send(self, arrays: Sequence[Array]) -> None:
        """Send arrays that are no message of a program."""
        self._outgoing.send(arrays, None)

    def receive_in(self, arrays: Sequence[Array]) -> None:
        """Receive in arrays what the other end sends."""
        self._incoming.receive(arrays)

    def flush(self) -> None:
        """Wait until all messages have left."""
        self._outgoing.flush()


class Targets:
    """Memory for the parts of a message that is still to be received."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}

    def reference(self, place: int) -> Array | None:
        """Return None: there is nothing yet that could be read."""
        return None

    def copy(self, place: int, target: Array) -> None:
        """Receive a part in `target`."""
        self.arrays[place] = target
