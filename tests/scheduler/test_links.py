"""Messages with arrays between processes of one host: whole, in order, gone with the processes."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hetero_la.scheduler.links import endpoint as endpoint_module
from hetero_la.scheduler.links import link_ends, shared_heap, topics
from hetero_la.scheduler.links.endpoint import Endpoint, endpoint
from hetero_la.scheduler.links.link_ends import Sender
from hetero_la.tiles.arrays.errors import LinkLostError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no links here")

MB = 1 << 20

#: Seconds after which a test that waits has failed.
PATIENCE = 60


class Inbox:
    """A subscriber that keeps what it gets."""

    def __init__(self, at: Endpoint, topic: str, *, watch: tuple[str, ...] = ()) -> None:
        self.messages: queue.Queue[tuple[Any, list[NDArray], Callable[[], None]]] = queue.Queue()
        self.losses: queue.Queue[Exception] = queue.Queue()
        at.subscribe(topic, lambda *message: self.messages.put(message), self.losses.put, watch)

    def get(self) -> tuple[Any, list[NDArray], Callable[[], None]]:
        return self.messages.get(timeout=PATIENCE)

    def header(self) -> Any:
        header, _, release = self.get()
        release()
        return header

    def loss(self) -> Exception:
        return self.losses.get(timeout=PATIENCE)


@pytest.fixture
def pair() -> Iterator[tuple[Endpoint, Endpoint]]:
    """Two endpoints, in one process."""
    with contextlib.closing(Endpoint()) as here, contextlib.closing(Endpoint()) as there:
        yield here, there


@pytest.fixture
def topic() -> str:
    return uuid.uuid4().hex


# --- what other processes do


def echo(name: str, topic: str) -> None:
    """Send back what comes, with what the arrays look like."""
    here, done = endpoint(), threading.Event()
    back = here.connect(name)

    def on_message(header: Any, arrays: list[NDArray], release: Callable[[], None]) -> None:
        looks = [(a.flags.c_contiguous, a.flags.f_contiguous, a.flags.writeable) for a in arrays]
        back.put(topic + header[0], (*header, looks), arrays)
        release()

    here.subscribe(topic, on_message, lambda _: done.set(), watch=[name])
    back.put(topic, here.name, [])
    done.wait(PATIENCE)


def keep(name: str, topic: str) -> None:
    """Take what comes, and release nothing."""
    here, done = endpoint(), threading.Event()
    here.subscribe(topic, lambda *_: None, lambda _: done.set(), watch=[name])
    here.connect(name).put(topic, here.name, [])
    done.wait(PATIENCE)


def stream(name: str, topic: str) -> None:
    """Send without end."""
    here = endpoint()
    to = here.connect(name)
    to.put(topic, here.name, [])
    number = 0
    with contextlib.suppress(LinkLostError):
        while True:
            to.put(topic, number, [np.full((500, 300), float(number), order="F")], most=8 * MB)
            number += 1


def flood(name: str, topic: str) -> None:
    """Send a lot once something has come, and be killed at once."""
    go = threading.Event()
    endpoint().subscribe(topic, lambda *_: go.set(), print)
    to = endpoint().connect(name)
    to.put(topic, endpoint().name, [])
    go.wait(PATIENCE)
    for number in range(250):
        to.put(topic, number, [np.full(3, number)])
    os.kill(os.getpid(), signal.SIGKILL)


Started = tuple[BaseProcess, Inbox, Sender, str]


@pytest.fixture
def start(topic: str) -> Iterator[Callable[[Callable[[str, str], None]], Started]]:
    """Start a process that does one of these."""
    processes = []

    def started(target: Callable[[str, str], None]) -> Started:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=target, args=(endpoint().name, topic), daemon=True)
        process.start()
        processes.append(process)
        inbox = Inbox(endpoint(), topic)
        name = inbox.header()
        return process, inbox, endpoint().connect(name), name

    yield started
    endpoint().unsubscribe(topic)
    for process in processes:
        process.kill()
        process.join(PATIENCE)


# --- what arrives


def arrays_of(dtype: str) -> list[NDArray]:
    rng = np.random.default_rng(3)
    a = (100 * rng.standard_normal((60, 40)) + 50j * rng.standard_normal((60, 40))).astype(
        dtype if dtype.startswith("complex") else "complex128"
    )
    rows = np.ascontiguousarray(a if dtype.startswith("complex") else a.real).astype(dtype)
    columns = np.asfortranarray(rows)
    return [
        columns, columns[3:50, 5:30], columns[7:8, :], columns[:, 2:3], columns[:1, :1],
        rows, rows[3:50, 5:30], rows[:, 0], rows[::2, 1], columns[::-2, ::-1],
        np.empty((0, 5), dtype), np.empty((5, 0), dtype, order="F"), np.array(3, dtype),
        rng.standard_normal((3, 4, 5)).astype(dtype).T,
    ]  # fmt: skip


def test_arrays_arrive_as_they_are(start: Callable[..., Started], topic: str) -> None:
    _, _, to, _ = start(echo)
    back = Inbox(endpoint(), topic + "back")
    for dtype in ("float32", "float64", "complex64", "complex128", "int32"):
        sent = arrays_of(dtype)
        to.put(topic, ("back", {"panel": 3}), sent)
        (_, header, looks), arrays, release = back.get()
        assert header == {"panel": 3}
        assert len(arrays) == len(sent)
        for array, a, (by_rows, by_columns, writeable) in zip(arrays, sent, looks, strict=True):
            assert array.dtype == a.dtype
            np.testing.assert_array_equal(array, a, strict=True)
            ascending = a.ndim < 2 or abs(a.strides[0]) <= abs(a.strides[-1])
            assert by_columns if ascending else by_rows
            assert not writeable
        release()
    endpoint().unsubscribe(topic + "back")


def test_messages_of_two_topics_arrive_in_order(start: Callable[..., Started], topic: str) -> None:
    _, _, to, _ = start(echo)
    backs = {name: Inbox(endpoint(), topic + name) for name in ("one", "two")}

    def send(name: str) -> None:
        for number in range(1000):
            to.put(topic, (name, number), [np.full(3, number)], most=MB)

    threads = [threading.Thread(target=send, args=(name,)) for name in backs]
    for thread in threads:
        thread.start()
    for name, back in backs.items():
        for number in range(1000):
            (_, header, _), (array,), release = back.get()
            assert header == number
            assert (array == number).all()
            release()
        endpoint().unsubscribe(topic + name)
    for thread in threads:
        thread.join()


def test_much_goes_through_little_memory(start: Callable[..., Started], topic: str) -> None:
    _, _, to, _ = start(echo)
    back = Inbox(endpoint(), topic + "back")
    for number in range(30):
        to.put(topic, ("back", number), [np.full((MB // 2, 1), float(number))], most=32 * MB)
        (_, header, _), (array,), release = back.get()
        assert header == number
        assert (array == number).all()
        release()
    assert memory_of(to) <= 32 * MB
    endpoint().unsubscribe(topic + "back")


def memory_of(sender: Sender) -> int:
    return 512 * os.fstat(sender._heap.fd).st_blocks


def test_put_waits_until_the_receiver_has_released_enough(pair: Any, topic: str) -> None:
    here, there = pair
    inbox, to, put = Inbox(there, topic), here.connect(there.name), queue.Queue()

    def send() -> None:
        for number in range(6):
            to.put(topic, number, [np.empty(8 * MB - 4096, np.uint8)], most=32 * MB)
            put.put(number)

    thread = threading.Thread(target=send)
    thread.start()
    releases = [inbox.get()[2] for _ in range(4)]
    assert [put.get(timeout=PATIENCE) for _ in range(4)] == [0, 1, 2, 3]
    to.put("another topic", 0, [np.zeros(MB)], most=32 * MB)
    with pytest.raises(queue.Empty):
        put.get(timeout=0.2)
    for _ in range(3):  # twice is once
        releases[2]()
    assert inbox.get()[0] == put.get(timeout=PATIENCE) == 4
    with pytest.raises(queue.Empty):
        put.get(timeout=0.2)
    releases[0]()
    assert inbox.get()[0] == 5
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_message_larger_than_is_allowed_goes_alone(pair: Any, topic: str) -> None:
    here, there = pair
    inbox, to = Inbox(there, topic), here.connect(there.name)
    for number in range(3):
        to.put(topic, number, [np.full((1000, 300), 1.0)], most=MB)
        header, (array,), release = inbox.get()
        assert header == number
        assert array.sum() == 300000
        release()


def test_messages_before_the_subscription_are_kept(pair: Any, topic: str) -> None:
    here, there = pair
    to = here.connect(there.name)
    for number in range(5):
        to.put(topic, number, [np.full((2, 2), number)])
    late = Inbox(there, "late" + topic)
    to.put("late" + topic, "later", [])
    assert late.header() == "later"  # so the others are there
    inbox = Inbox(there, topic)
    for number in range(5):
        header, (array,), _ = inbox.get()
        assert header == number
        assert (array == number).all()


def test_a_header_may_be_of_any_size(pair: Any, topic: str) -> None:
    here, there = pair
    header = list(range(200_000))
    here.connect(there.name).put(topic, header, [])
    assert Inbox(there, topic).header() == header


def test_arrays_of_objects_are_refused(pair: Any, topic: str) -> None:
    here, there = pair
    with pytest.raises(TypeError, match="an array of object cannot be in shared memory"):
        here.connect(there.name).put(topic, 0, [np.array([{}])])


# --- ends of topics


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_topic_that_is_over_holds_no_memory(pair: Any, topic: str) -> None:
    here, there = pair
    inbox, to = Inbox(there, topic), here.connect(there.name)
    for number in range(3):
        to.put(topic, number, [np.zeros(1000)])
        to.put("never" + topic, number, [np.zeros(1000)])
    (_, _, release), _, _ = (inbox.get() for _ in range(3))
    assert len(to._topics) == 6
    there.unsubscribe(topic)
    there.unsubscribe("never" + topic)
    wait_until(lambda: not to._topics)
    to.put(topic, "late", [np.zeros(1000)])
    wait_until(lambda: not to._topics)
    release()
    assert inbox.messages.empty()
    with pytest.raises(LinkLostError, match="is over"):
        Inbox(there, topic)


def test_a_topic_has_one_subscriber(pair: Any, topic: str) -> None:
    Inbox(pair[0], topic)
    with pytest.raises(ValueError, match="has already been subscribed to"):
        Inbox(pair[0], topic)


def test_topics_that_are_over_are_not_remembered_for_ever() -> None:
    table = topics.Topics()
    for number in range(3000):
        table.unsubscribe(f"run {number}")
    assert list(table._ended)[-1] == "run 2999"
    assert len(table._ended) == topics._ENDED


def test_memory_is_used_again_and_given_back_when_idle(
    pair: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_ends, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(endpoint_module, "_LOOK_SECONDS", 0.05)
    here, there = pair
    inbox, to, a = Inbox(there, topic), here.connect(there.name), np.ones((MB, 1))
    for _ in range(10):
        to.put(topic, 0, [a])
        inbox.header()
        wait_until(lambda: not to._topics)
        assert 8 * MB <= memory_of(to) <= 8 * MB + 8192
    wait_until(lambda: memory_of(to) == 0)
    to.put(topic, 1, [a])
    assert (inbox.get()[1][0] == a).all()


def test_blocks_do_not_overlap_and_holes_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_heap, "_EXTENT", 1 << 16)
    heap, rng, used = shared_heap.SharedHeap(), np.random.default_rng(5), {}
    for number in range(2000):
        if used and rng.random() < 0.5:
            start = int(rng.choice(list(used)))
            block, mark = used.pop(start)
            assert set(bytes(heap.view(block))) == {mark}
            heap.free(start)
        else:
            block, mark = heap.allocate(int(rng.integers(1, 30_000))), number % 256
            heap.view(block)[:] = bytes([mark]) * block.size
            used[block.start] = block, mark
    for start in used:
        heap.free(start)
    assert len(heap._holes) == len(heap._extents) < 40
    heap.close()


# --- ends of links


def put_for_ever(to: Sender, topic: str, header: object) -> None:
    while True:
        to.put(topic, header, [np.zeros(MB)], most=32 * MB)


def test_a_receiver_that_is_killed_ends_a_put_that_waits(
    start: Callable[..., Started], topic: str
) -> None:
    process, _, to, name = start(keep)
    watching = Inbox(endpoint(), "watching" + topic, watch=(name,))
    threading.Timer(0.3, process.kill).start()
    with pytest.raises(LinkLostError, match=f"process {process.pid} has ended"):
        put_for_ever(to, topic, 0)
    assert f"process {process.pid} has ended" in str(watching.loss())
    with pytest.raises(LinkLostError):
        to.put(topic, 0, [])
    process.join(PATIENCE)  # its files are closed one after the other
    with pytest.raises(LinkLostError, match="cannot reach 'hetero-la"):
        endpoint().connect(name)
    assert watching.losses.empty()
    endpoint().unsubscribe("watching" + topic)


def test_a_sender_that_is_killed_leaves_whole_messages(
    start: Callable[..., Started], topic: str
) -> None:
    process, inbox, to, _ = start(stream)
    for number in range(100):
        header, (array,), release = inbox.get()
        assert header == number
        assert (array == number).all()
        release()
    held = inbox.get()
    process.kill()
    assert f"process {process.pid} has ended" in str(inbox.loss())
    after = inbox.messages.qsize()
    for number in range(after):
        header, (array,), release = inbox.get()
        assert header == 101 + number
        assert (array == header).all()
        release()
    assert (held[1][0] == 100).all()
    held[2]()
    assert to.error is not None
    assert inbox.losses.empty()


def test_a_loss_is_told_once_and_after_the_messages(pair: Any, topic: str) -> None:
    here, there = pair
    begun, go_on = threading.Event(), threading.Event()

    def hold_up(*_: object) -> None:
        begun.set()
        go_on.wait(PATIENCE)

    there.subscribe("held up" + topic, hold_up, print)
    inbox = Inbox(there, topic)
    process = multiprocessing.get_context("spawn").Process(target=flood, args=(there.name, topic))
    process.start()
    # So there are two links to that process, and both have ended when they are read again.
    to = there.connect(inbox.header())
    here.connect(there.name).put("held up" + topic, 0, [])
    assert begun.wait(PATIENCE)
    to.put(topic, "go", [])
    process.join(PATIENCE)
    go_on.set()
    assert isinstance(inbox.loss(), LinkLostError)
    assert [inbox.messages.get_nowait()[0] for _ in range(250)] == list(range(250))
    wait_until(lambda: len(there._links) == 1)
    assert inbox.losses.empty()


def test_a_stopped_receiver_blocks_nobody_for_ever(
    start: Callable[..., Started], topic: str
) -> None:
    process, _, to, _ = start(echo)
    back = Inbox(endpoint(), topic + "back")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    for number in range(2000):  # more than the socket holds
        to.put(topic, ("back", number), [])
    os.kill(process.pid, signal.SIGCONT)
    assert [back.header()[1] for _ in range(2000)] == list(range(2000))
    os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(0.3, to.close).start()
    with pytest.raises(LinkLostError, match=f"link to process {process.pid} has been closed"):
        put_for_ever(to, topic, ("back", 0))
    endpoint().unsubscribe(topic + "back")


def test_what_nobody_has_subscribed_to_goes_with_its_sender(pair: Any, topic: str) -> None:
    here, there = pair
    inbox, other = Inbox(there, "other" + topic), Inbox(there, "third" + topic)
    to = here.connect(there.name)
    to.put(topic, 0, [np.zeros(MB)])
    to.put("other" + topic, 0, [])
    inbox.header()
    to.close()
    assert isinstance(inbox.loss(), LinkLostError)
    late = Inbox(there, topic)
    assert isinstance(late.loss(), LinkLostError)
    assert late.messages.empty()
    assert other.losses.empty()  # it never sent anything of that topic
    again = here.connect(there.name)
    assert again is not to
    again.put(topic, 1, [])
    assert late.header() == 1


def test_a_link_is_shared_until_it_is_closed(pair: Any) -> None:
    here, there = pair
    to = here.connect(there.name)
    assert here.connect(there.name) is to
    assert there.connect(here.name) is not to


def test_a_reading_thread_that_sees_the_end_first(monkeypatch: pytest.MonkeyPatch) -> None:
    here, write = Endpoint(), os.eventfd_write

    def write_late(fd: int, number: int) -> None:
        write(fd, number)  # something else wakes the thread before it is told
        here._thread.join(0.2)
        write(fd, number)

    monkeypatch.setattr(os, "eventfd_write", write_late)
    here.close()
    assert not here._thread.is_alive()


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_errors_of_reading_and_of_subscribers_come_to_the_subscriber(pair: Any, topic: str) -> None:
    here, there = pair
    losses: queue.Queue[Exception] = queue.Queue()

    def fail(header: Any, *_: Any) -> None:
        raise ArithmeticError(f"of {header}")

    there.subscribe(topic, fail, losses.put)
    to = here.connect(there.name)
    to.put(topic, "panel 0", [])
    assert repr(losses.get(timeout=PATIENCE)) == "ArithmeticError('of panel 0')"
    to.put(topic, Unreadable(), [])
    assert "a message of process" in str(losses.get(timeout=PATIENCE))
    wait_until(lambda: to.error is not None)


def test_nobody_at_a_name(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    with pytest.raises(LinkLostError, match="cannot reach 'hetero-la-nobody'"):
        endpoint().connect("hetero-la-nobody")
    with pytest.raises(LinkLostError, match="one of the two processes has no links"):
        endpoint().connect("")

    def no_memory() -> int:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(shared_heap, "_memory_file", no_memory)
    none, arrived = Endpoint(), list[str]()
    assert none.name == ""
    none.deliver(topic, "by another way", [])
    none.subscribe(topic, lambda *message: arrived.append(message[0]), print)
    assert arrived == ["by another way"]
    with pytest.raises(LinkLostError, match="one of the two processes has no links"):
        none.connect(endpoint().name)
    none.close()


def test_memory_files_of_a_python_that_does_not_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    fd = shared_heap._memory_file()
    try:
        assert "memfd:hetero-la" in os.readlink(f"/proc/self/fd/{fd}")
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


# --- processes: what is left, children, other namespaces, other users


HEAD = "import numpy as np\nfrom hetero_la.scheduler.links.endpoint import Endpoint, endpoint\n"


def run(script: str, *arguments: str, command: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*command, sys.executable, "-c", HEAD + textwrap.dedent(script), *arguments],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_no_file_and_no_memory_is_left() -> None:
    out = run("""
        import gc, os, queue, re, threading
        from pathlib import Path

        def state():
            gc.collect()
            status = Path("/proc/self/status").read_text()
            shared = re.search(r"RssShmem:\\s+(\\d+)", status)[1]
            return len(os.listdir("/proc/self/fd")), int(shared), threading.active_count()

        def exchange():
            here, there, messages = Endpoint(), Endpoint(), queue.Queue()
            there.subscribe("run", lambda *message: messages.put(message), str)
            for _ in range(3):
                here.connect(there.name).put("run", 0, [np.ones((1 << 20, 4))])
            message = [messages.get(timeout=60) for _ in range(3)][0]
            assert message[1][0].all()
            during = state()
            here.close()
            there.close()
            message[2]()
            return during

        before = state()
        during = exchange()
        print(before == state(), during[0] > before[0], during[1] > before[1] + 60_000)
    """)
    assert out == "True True True\n"


def test_a_process_with_links_ends_by_itself(topic: str) -> None:
    inbox = Inbox(endpoint(), topic)
    out = run("""
        import sys
        to = endpoint().connect(sys.argv[1])
        endpoint().subscribe("run", print, print, watch=[sys.argv[1]])
        to.put(sys.argv[2], "the last", [np.ones((1000, 1000))])
        print("end")
    """, endpoint().name, topic)  # fmt: skip
    assert out == "end\n"
    header, (array,), _ = inbox.get()
    assert header == "the last"
    assert array.sum() == 1e6
    assert isinstance(inbox.loss(), LinkLostError)
    endpoint().unsubscribe(topic)


def test_a_forked_child_has_links_of_its_own_and_keeps_none_of_its_parent(topic: str) -> None:
    inbox = Inbox(endpoint(), topic)
    script = """
        import os, signal, sys, threading
        to = endpoint().connect(sys.argv[1])
        to.put(sys.argv[2], ("parent", os.getpid(), endpoint().name), [np.ones(5)])
        if os.fork() == 0:
            signal.alarm(60)
            name = endpoint().name
            endpoint().connect(sys.argv[1]).put(sys.argv[2], ("child", os.getpid(), name), [])
        threading.Event().wait()
    """
    with contextlib.ExitStack() as stack:
        parent = subprocess.Popen(
            [sys.executable, "-c", HEAD + textwrap.dedent(script), endpoint().name, topic],
            cwd=Path(__file__).parents[2],
        )
        stack.callback(parent.wait)
        stack.callback(parent.kill)
        who, number, name = inbox.header()
        assert (who, number) == ("parent", parent.pid)
        who, child, childs_name = inbox.header()
        assert who == "child"
        stack.callback(os.kill, child, signal.SIGKILL)
        assert name != childs_name
        parent.kill()  # while the child lives
        assert f"process {parent.pid} has ended" in str(inbox.loss())
        parent.wait(PATIENCE)
        with pytest.raises(LinkLostError):
            endpoint().connect(name)
        endpoint().connect(childs_name)
    assert f"process {child} has ended" in str(inbox.loss())
    endpoint().unsubscribe(topic)


def test_another_network_namespace_is_another_host() -> None:
    if subprocess.run(["unshare", "-r", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    script = """
        import sys
        try:
            endpoint().connect(sys.argv[1])
        except Exception as error:
            print(type(error).__name__)
    """
    assert run(script, endpoint().name) == ""
    assert run(script, endpoint().name, command=("unshare", "-r", "-n")) == "LinkLostError\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_other_users_are_refused() -> None:
    out = run("""
        import os, socket, sys
        os.setuid(65534)
        try:
            endpoint().connect(sys.argv[1])
        except Exception as error:
            print(type(error).__name__, "is of user 0, and this one of 65534" in str(error))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.settimeout(60)
            other.connect("\\0" + sys.argv[1])
            print(other.recv(10))
        sys.stdout.flush()
        os._exit(0)  # a tool that measures coverage could not write its file as that user
    """, endpoint().name)  # fmt: skip
    assert out == "LinkLostError True\nb''\n"
