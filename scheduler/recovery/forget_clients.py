"""Cleanup of data that Dask's scheduler keeps for clients which closed while sending it."""

from __future__ import annotations

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

#: Seconds after the end of a client at which to look for data that has arrived since.
_LOOKS = (1.0, 10.0, 60.0)


class ForgetClients(SchedulerPlugin):  # type: ignore[misc]
    """Scheduler plugin that releases data which arrives for a closed client.

    `Scheduler.scatter` ends with `client_desires_keys`, which adds a client that the scheduler
    does not know, here one that has closed meanwhile: it holds the data for ever (distributed
    2026.8; dask/distributed#3899 was the same for variables).
    """

    name = "hetero-la-leftovers"
    idempotent = True

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Look for late data of a client; Dask calls this when it has closed."""

        def look() -> None:
            if client in scheduler.clients and client not in scheduler.client_comms:
                scheduler.remove_client(client)

        for seconds in _LOOKS:
            scheduler.loop.call_later(seconds, look)
