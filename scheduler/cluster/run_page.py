"""A page of the runs of a cluster, live, beside Dask's own in its dashboard.

Whoever looks at it asks, through Dask's scheduler, the workers; without anybody looking, nothing
is sent.  The page needs the HTTP server of Dask's scheduler, and no bokeh.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import pickle
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urljoin

from distributed import Client, Scheduler, Worker
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from tornado.web import RequestHandler

from hetero_la.scheduler.run.watched import Seen, is_over, look_around, runs_of

#: Last part of the page's URL.
PAGE = "hetero-la"
#: Seconds for which what was seen is not asked for again, and in which workers have to answer.
_FRESH, _PATIENCE = 0.2, 1.0
#: Runs that are listed once they are over, and seconds for which they are.
_MOST_OVER, _LISTED = 20, 600.0
_PAGE_FILE = importlib.resources.files("hetero_la.scheduler.cluster") / "web" / "runs.html"


class AnswerLooks(WorkerPlugin):  # type: ignore[misc]
    """Worker plugin that lets a worker say what is seen of the runs of its process."""

    name = "hetero-la-looks"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Add the answer to what the scheduler may ask the worker."""
        worker.handlers["hetero_la_look"] = _look


async def _look() -> list[Seen]:
    return look_around()


class _Heard(NamedTuple):
    """What a process said of a part of a run, and when."""

    process: str
    when: float
    seen: Seen


class WatchRuns(SchedulerPlugin):  # type: ignore[misc]
    """Scheduler plugin that shows the runs of the workers on a page, to whoever looks."""

    name = "hetero-la-runs"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Add the page to the scheduler's HTTP server, and the answer to all workers."""
        self.scheduler, self._asked_last = scheduler, 0.0
        self.dashboard = False
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[tuple[str, int], _Heard] = {}
        self._addresses = set(scheduler.workers)
        scheduler.handlers["hetero_la_runs"] = self.runs
        await scheduler.register_worker_plugin(
            comm=None, plugin=pickle.dumps(AnswerLooks()), name=AnswerLooks.name, idempotent=True
        )
        if (application := getattr(scheduler, "http_application", None)) is not None:
            pages = [
                (rf"(?:/.*)?/{PAGE}", _Page, {}),
                (rf"(?:/.*)?/{PAGE}/runs.json", _Runs, {"plugin": self}),
            ]
            application.add_handlers(r".*", pages)
            self._add_to_menu()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note a worker: others in its process may be those of another cluster."""
        self._addresses.add(worker)

    def _add_to_menu(self) -> None:
        """Let Dask's dashboard link to the page, if bokeh shows one."""
        module = sys.modules.get("distributed.dashboard.scheduler")
        shown = map(repr, self.scheduler.http_application.applications)
        if module is not None and any("Bokeh" in application for application in shown):
            self.dashboard = True
            module.template_variables(self.scheduler)["pages"].append(PAGE)

    async def runs(self) -> list[dict[str, Any]]:
        """Return what is seen of the runs, after asking the workers."""
        if time.monotonic() - self._asked_last > _FRESH:
            self._asked_last = time.monotonic()
            await self._ask()
        now, parts = time.monotonic(), []
        for heard in self._heard.values():
            seen = heard.seen.copy()
            if is_over(seen):
                seen["ago"] += now - heard.when
            parts.append(seen)
        return runs_of(parts)

    async def _ask(self) -> None:
        """Ask one worker of each process, but those that still owe an answer."""
        processes = _processes(self.scheduler.workers)
        for process, address in processes.items():
            if process not in self._asking or self._asking[process].done():
                self._asking[process] = asyncio.create_task(self._ask_one(process, address))
        self._asking = {p: task for p, task in self._asking.items() if p in processes}
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=_PATIENCE)
        self._note_losses(processes)
        self._forget()

    async def _ask_one(self, process: str, address: str) -> None:
        with contextlib.suppress(Exception):  # it is leaving, or too busy to answer
            seen = await self.scheduler.rpc(address).hetero_la_look()
            going = [key for key, heard in self._heard.items() if not is_over(heard.seen)]
            for key in going:
                if self._heard[key].process == process:
                    del self._heard[key]
            now = time.monotonic()
            for part in seen:
                if part["address"] in self._addresses:
                    self._heard[part["run"], part["worker"]] = _Heard(process, now, part)

    def _note_losses(self, processes: Iterable[str]) -> None:
        """Note that what was under way in a process that has left is over."""
        now = time.monotonic()
        for key, heard in self._heard.items():
            if heard.process not in processes and not is_over(heard.seen):
                seen = heard.seen.copy()
                seen["state"], seen["why"], seen["doing"] = "failed", "the worker has left", ""
                self._heard[key] = _Heard(heard.process, now, seen)

    def _forget(self) -> None:
        """Forget runs that have been over for long."""
        now, ended = time.monotonic(), dict[str, float]()
        for (run, _), heard in self._heard.items():
            when = heard.when - heard.seen["ago"] if is_over(heard.seen) else now
            ended[run] = max(ended.get(run, 0.0), when)
        latest = sorted(ended, key=lambda run: -ended[run])
        over = [run for run in latest if ended[run] < now]
        kept = {run for run in over[:_MOST_OVER] if now - ended[run] < _LISTED}
        kept |= ended.keys() - set(over)
        self._heard = {key: heard for key, heard in self._heard.items() if key[0] in kept}


def _processes(addresses: Iterable[str]) -> dict[str, str]:
    """Return one address of each process: workers of one process have much of it in common."""
    return {
        address.rpartition("/")[0] if address.startswith("inproc://") else address: address
        for address in addresses
    }


class _Page(RequestHandler):
    """The page, which asks for the runs again and again while it is looked at."""

    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write(_PAGE_FILE.read_bytes())


class _Runs(RequestHandler):
    """The runs as JSON."""

    def initialize(self, plugin: WatchRuns) -> None:
        self._plugin = plugin

    async def get(self) -> None:
        runs = await self._plugin.runs()
        self.set_header("Cache-Control", "no-store")
        workers = len(self._plugin.scheduler.workers)
        self.write({"runs": runs, "workers": workers, "dashboard": self._plugin.dashboard})


def page_link(dashboard_link: str | None) -> str:
    """Return the URL of the page, beside that of Dask's dashboard; empty without one.

    Examples
    --------
    >>> page_link("http://127.0.0.1:8787/status")
    'http://127.0.0.1:8787/hetero-la'
    """
    return urljoin(dashboard_link, PAGE) if dashboard_link else ""


def runs_seen_by(client: Client) -> list[dict[str, Any]]:
    """Return what is seen of the runs of a client's cluster, which has the plugin."""
    found: list[dict[str, Any]] = client.sync(client.scheduler.hetero_la_runs)
    return found
