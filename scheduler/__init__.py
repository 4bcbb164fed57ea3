"""Scheduler: task graphs, where their tasks run, and the executors that run them.

Installed as ``hetero_la.scheduler``; it knows tiles, but no algorithm.
"""

if __name__ != "hetero_la.scheduler":
    raise ImportError(
        f"import this package as hetero_la.scheduler, not as {__name__!r}: "
        "two names would make two copies of every class"
    )
