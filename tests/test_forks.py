"""Forked children: what they do while other threads of their parent are at work."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

HEAD = """
    import os, signal, sys, threading, time, warnings
    import multiprocessing, numpy as np, scipy.linalg
    import hetero_la
    warnings.simplefilter("ignore")

    def matrix(n):
        return np.random.default_rng(n).standard_normal((n, n))

    def check(n):
        factors = hetero_la.lu_factor(matrix(n))
        assert np.allclose(factors.lu, scipy.linalg.lu_factor(matrix(n))[0])
        return len(factors.plan.workers)

    def in_child(function, *args):
        child = os.fork()
        if child == 0:
            signal.alarm(40)
            function(*args)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
"""


def run(script: str, blas_threads: int = 1) -> str:
    """What a script prints, run by itself; a hang is a failure."""
    # Coverage's lock may be held in another thread at the fork, and its child then waits for ever.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(script)],
        # OpenBLAS's own threads do not survive that a process forks while they work.
        env={**environment, "OPENBLAS_NUM_THREADS": str(blas_threads)},
        cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("of_parent", [pytest.param(300, marks=pytest.mark.exhaustive), 1500])
@pytest.mark.exhaustive
def test_a_child_that_is_forked_while_a_thread_factors(of_parent: int) -> None:
    """Of a small matrix in the calling thread, and of one on the process's own cluster."""
    out = run(f"""
        hetero_la.lu_factor(matrix({of_parent}))  # measures the machine
        done = threading.Event()
        def work():
            while not done.is_set():
                hetero_la.lu_factor(matrix({of_parent}))
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(3):
                time.sleep(0.1)
                in_child(check, 200)
            in_child(check, 1500)
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(len(pool.map(check, [200, 300, 200])))
        finally:
            done.set()
            thread.join()
        check({of_parent})
    """)
    assert out == "3\n"


def test_every_lock_of_the_process_is_new_in_a_child() -> None:
    run("""
        from hetero_la.execution import executor_choice
        from hetero_la.scheduler.cluster import clients
        from hetero_la.scheduler.links import endpoint
        from hetero_la.scheduler.on_dask import held_shard, threads as on_dask
        from hetero_la.scheduler.probe import quick
        from hetero_la.scheduler.cluster.devices import _devices_lock
        from hetero_la.scheduler.cluster.cluster import _configuration_lock
        locks = [
            executor_choice.device_of_caller, clients._embedded_lock, on_dask._threads_of_workers,
            on_dask._devices_of_this_process,
            quick._measuring, _devices_lock, _configuration_lock, endpoint._making,
            held_shard._changed,
        ]
        held, done = threading.Barrier(len(locks) + 1), threading.Event()
        def hold(lock):
            with lock:
                held.wait()
                done.wait()
        threads = [threading.Thread(target=hold, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        held.wait()
        held_shard._working["share"] += 1
        def child():
            for lock in (*locks[:-1], held_shard._changed):
                with lock:
                    pass
            held_shard.let_old_work_end("share")
        in_child(child)
        done.set()
    """)


def test_a_child_does_not_use_clients_of_its_parent() -> None:
    out = run("""
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
            with Client(cluster) as client, Client(cluster, set_as_default=False) as other:
                def child():
                    for given in (client, other):
                        try:
                            hetero_la.lu_factor(matrix(300), client=given)
                        except ValueError as error:
                            print(error)
                    print(check(1500) > 0, flush=True)
                    os._exit(0)
                in_child(child)
    """)
    said = "the client that was given belongs to the process that forked this one\n"
    assert out == 2 * said + "True\n"


def test_a_child_has_all_threads_of_blas() -> None:
    script = """
        from threadpoolctl import threadpool_info
        from hetero_la.tiles.kernels.cpu.blas_threads import blas_bound
        def threads():
            return [e["num_threads"] for e in threadpool_info() if e["user_api"] == "blas"]
        def bounded():
            with blas_bound(1):
                return threads()
        before = threads()
        def child():
            assert threads() == before, threads()
            assert set(bounded()) == {1}
        with blas_bound(1):
            assert set(threads()) == {1}
            in_child(child)
    """
    run(script, blas_threads=2)


@pytest.mark.gpu
def test_a_child_of_a_process_that_has_used_a_gpu() -> None:
    out = run("""
        import cupy
        a, b = cupy.asarray(matrix(200)), cupy.asarray(matrix(500))
        hetero_la.lu_factor(a)
        def child():
            print(check(200))
            check(1500)
            uses = [lambda a=a: hetero_la.lu_factor(a) for a in (a, b)]
            for use in (*uses, lambda: hetero_la.Cluster(gpus=1)):
                try:
                    use()
                except hetero_la.tiles.arrays.errors.DeviceUnavailableError as error:
                    print("forked" in str(error), flush=True)
            os._exit(0)
        in_child(child)
        hetero_la.lu_factor(a)
    """)
    assert out == "1\nTrue\nTrue\nTrue\n"
