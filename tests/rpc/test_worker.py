"""A worker starts, tells, restarts and ends, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from llama_batch import OptionError, RpcError, RpcUnavailableError, rpc
from llama_batch.rpc import RpcWorker, supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    Eventually = Callable[[Callable[[], object]], None]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
HERE = "127.0.0.1:0"


def state_of(pid: int) -> str:
    """The system's letter for what a process does: Z and X are gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "ZX"


def n_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_worker_tells_what_it_serves_and_answers() -> None:
    with RpcWorker(HERE, n_threads=1) as worker:
        info = worker.info()
        assert (info.state, info.n_restarts, info.cache) == ("serving", 0, None)
        assert info.endpoint == worker.endpoint != HERE
        assert info.devices
        assert rpc.ping(worker.endpoint).split(".")[0] == "7"
        assert [d.memory_total for d in rpc.devices(worker.endpoint)] == [d.memory_total for d in info.devices]
    assert worker.info().state == "stopped"
    assert worker.info().pid is None
    with pytest.raises(RpcError, match="refused"):
        rpc.ping(worker.endpoint)


def test_a_worker_can_be_started_again_and_stopped_twice() -> None:
    worker = RpcWorker(HERE)
    worker.stop()
    assert worker.info().state == "new"
    for _ in range(2):
        assert worker.start() is worker.start()
        assert rpc.ping(worker.endpoint)
        worker.stop()
        worker.stop()
    assert worker.wait(0)


@pytest.mark.parametrize(
    ("endpoint", "options", "reason", "message"),
    [
        ("nonsense", {}, "bad_endpoint", "host:port"),
        ("[::1]:1", {}, "bad_endpoint", "IPv6"),
        ("no-such-host.invalid:1", {}, "bad_endpoint", "IPv4"),
        ("0.0.0.0:0", {}, "public_address", "allow_public"),
        ("8.8.8.8:0", {}, "public_address", "allow_public"),
        ("192.0.2.1:0", {}, "bind", "assign"),
        (HERE, {"devices": ["Abacus7"]}, "unknown_device", "Abacus7.*there are .*CPU"),
        (HERE, {"bind_timeout": 0.001}, "bind_timeout", "0.001 s"),
        (HERE, {"cache_dir": "/dev/null/x"}, "cache", "cannot be used"),
    ],
)
def test_what_cannot_be_served_has_its_reason(
    endpoint: str, options: dict[str, Any], reason: str, message: str
) -> None:
    worker = RpcWorker(endpoint, **options)
    with pytest.raises(RpcError, match=message) as told:
        worker.start()
    assert told.value.reason == reason
    assert worker.info().pid is None


@pytest.mark.parametrize(
    "options",
    [{"n_threads": 0}, {"n_threads": True}, {"n_threads": "4"}, {"bind_timeout": 0}, {"bind_timeout": float("nan")},
     {"max_rss_mb": -1}, {"max_restarts": -1}, {"cache_max_mb": 1.5}, {"devices": "CPU"}, {"devices": [1]}],
)  # fmt: skip
def test_what_is_no_option_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        RpcWorker(HERE, **options)
    with pytest.raises(OptionError, match="endpoint"):
        RpcWorker(5)  # type: ignore[arg-type]


def test_an_address_that_others_reach_is_allowed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with RpcWorker("0.0.0.0:0", allow_public=True) as worker:
        assert rpc.ping(worker.endpoint.replace("0.0.0.0", "127.0.0.1"))
    assert "nothing is authenticated or encrypted" in caplog.text


def test_starting_twice_at_one_endpoint_fails_and_harms_nobody() -> None:
    with RpcWorker(HERE) as worker:
        with pytest.raises(RpcError, match="in use") as told:
            RpcWorker(worker.endpoint).start()
        assert told.value.reason == "bind"
        assert rpc.ping(worker.endpoint)


@LINUX
def test_a_child_that_dies_is_started_again(eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.05)
    with RpcWorker(HERE) as worker:
        pid = worker.info().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: worker.info().n_restarts == 1 and worker.info().state == "serving")
        assert worker.info().exit_codes == (-signal.SIGKILL,)
        assert worker.info().pid != pid
        assert rpc.ping(worker.endpoint)


@LINUX
def test_a_child_that_keeps_dying_is_given_up(eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    with RpcWorker(HERE, max_restarts=1) as worker:
        for _ in range(2):
            eventually(lambda: worker.info().state == "serving")
            pid = worker.info().pid
            assert pid is not None
            os.kill(pid, signal.SIGSEGV)
            eventually(lambda pid=pid: worker.info().pid != pid)  # type: ignore[misc]
        with pytest.raises(RpcError, match="signal 11") as told:
            worker.wait(30)
        assert told.value.reason == "ended"
        assert worker.info().state == "failed"


@LINUX
def test_no_restart_where_the_address_is_taken_meanwhile(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 1.0)
    with RpcWorker(HERE) as worker:
        pid = worker.info().pid
        assert pid is not None
        host, _, port = worker.endpoint.partition(":")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: worker.info().state == "waiting")
        with socket.create_server((host, int(port))), pytest.raises(RpcError) as told:
            worker.wait(30)
        assert told.value.reason == "bind"


@LINUX
def test_a_child_that_has_grown_begins_anew_between_clients(eventually: Eventually) -> None:
    with RpcWorker(HERE, max_rss_mb=1) as worker:
        eventually(lambda: worker.info().n_restarts >= 1)
        assert set(worker.info().exit_codes) == {0}
    with RpcWorker(HERE, max_rss_mb=1 << 20) as worker:
        assert not worker.wait(2.5)
        assert worker.info().n_restarts == 0


@LINUX
def test_a_client_keeps_a_child_that_has_grown(eventually: Eventually) -> None:
    with RpcWorker(HERE) as worker:
        host, _, port = worker.endpoint.partition(":")
        with socket.create_connection((host, int(port))):
            eventually(lambda: worker.info().is_connected)
            assert worker._supervisor is not None
            worker._supervisor._policy = supervisor.Policy(30, 10, 1)
            assert not worker.wait(2.5)
            assert worker.info().n_restarts == 0
        eventually(lambda: worker.info().n_restarts >= 1)


@LINUX
def test_a_worker_that_hangs_is_busy_and_can_be_ended(eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.3)
    with RpcWorker(HERE) as worker:
        pid = worker.info().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: state_of(pid) == "T")
        with pytest.raises(RpcUnavailableError, match="hangs") as told:
            rpc.ping(worker.endpoint, timeout=0.3)
        assert told.value.reason == "busy"
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: worker.info().n_clients == 1 and not worker.info().is_connected)
        assert rpc.ping(worker.endpoint)
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: state_of(pid) == "T")
    assert not is_alive(pid)
    assert worker.info().exit_codes == (-signal.SIGKILL,)


@LINUX
def test_a_client_whose_machine_is_gone_is_noticed_by_the_system() -> None:
    """Nothing else ends its connection, and the server has no other client meanwhile."""
    keepalive = "02"
    with RpcWorker(HERE) as worker:
        host, _, port = worker.endpoint.partition(":")
        with socket.create_connection((host, int(port))) as client:
            ends = [f":{number:04X}" for number in (int(port), client.getsockname()[1])]
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            timers = [row[5] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])]
    assert [timer.partition(":")[0] for timer in timers] == [keepalive]


def restart_often(n: int, eventually: Eventually) -> None:
    with RpcWorker(HERE) as worker:
        before = n_descriptors()
        pids = set()
        for i in range(1, n + 1):
            pids.add(worker.info().pid)
            worker.restart()
            eventually(lambda i=i: worker.info().n_restarts == i and worker.info().state == "serving")  # type: ignore[misc]
        assert rpc.ping(worker.endpoint)
        assert n_descriptors() <= before
        assert len(pids) == n
        assert not any(is_alive(pid) for pid in pids if pid is not None)


@LINUX
def test_restarts_leave_no_process_and_no_descriptor(eventually: Eventually) -> None:
    restart_often(5, eventually)


@LINUX
@pytest.mark.slow
def test_fifty_restarts_leave_no_process_and_no_descriptor(eventually: Eventually) -> None:
    restart_often(50, eventually)


@LINUX
def test_workers_leave_no_descriptor_and_no_thread() -> None:
    import threading

    before, n_threads = n_descriptors(), threading.active_count()
    for _ in range(3):
        with RpcWorker(HERE) as worker:
            pid = worker.info().pid
    assert pid is not None
    assert not is_alive(pid)
    assert n_descriptors() <= before
    assert threading.active_count() <= n_threads


@LINUX
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)", "sys.exit(0)", "del worker; time.sleep(60)"])
def test_a_parent_that_ends_leaves_no_child(end: str, eventually: Eventually) -> None:
    program = (
        "import os, sys, time; from llama_batch.rpc import RpcWorker\n"
        f"worker = RpcWorker('{HERE}').start(); print(worker.info().pid, flush=True); {end}"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        eventually(lambda: not is_alive(pid))
        parent.kill()


@LINUX
def test_a_parent_that_forked_and_is_killed_leaves_no_child(eventually: Eventually) -> None:
    """The fork has the pipe, too, whose end the child waits for."""
    program = (
        "import os, time; from llama_batch.rpc import RpcWorker\n"
        f"worker = RpcWorker('{HERE}').start(); fork = os.fork()\n"
        "if fork: print(worker.info().pid, fork, flush=True); os.kill(os.getpid(), 9)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, fork = map(int, parent.stdout.readline().split())
        try:
            eventually(lambda: not is_alive(pid))
        finally:
            os.kill(fork, signal.SIGKILL)


COMMAND = [sys.executable, "-m", "llama_batch.cli", "rpc-worker"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(sent: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "-e", HERE, "-t", "1"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("llama-batch: serving "))
        endpoint = line.partition(" at ")[2].partition(";")[0]
        assert rpc.ping(endpoint)
        process.send_signal(sent)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in said
    with pytest.raises(RpcError):
        rpc.ping(endpoint)


@pytest.mark.parametrize(
    ("words", "code"),
    [([], 2), (["-e", "x"], 2), (["-e", "0.0.0.0:0"], 2), (["-e", HERE, "-d", "X7"], 2), (["-e", "192.0.2.1:9"], 1)],
)
def test_a_command_that_cannot_serve_is_one_line_and_a_code(words: list[str], code: int) -> None:
    done = subprocess.run([*COMMAND, "-q", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert done.stderr.startswith("llama-batch: ")
