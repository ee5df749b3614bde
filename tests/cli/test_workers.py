"""Several workers on one port, and reloads: real processes, real sockets, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import http.client
import json
import os
import pty
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import termios
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.cli.serve import worker_count
from headstart.cli.sidecar_server import GONE, Acceptor
from headstart.cli.workers import share_of
from headstart.config.checks import checked
from headstart.embeddings.encoder_worker import available_cores
from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Stall, Status
from headstart.settings import (
    AuditSettings,
    CacheSettings,
    EncoderSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)
from support.patience import until
from support.served import Load, Served, ask, headstart, served, stop

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def two(tmp_path: Path, free_port: int) -> Iterator[Served]:
    with served(tmp_path, free_port, "--workers", "2") as server:
        yield server


def test_an_interrupt_ends_all_workers_without_a_traceback(two: Served) -> None:
    workers = two.workers
    stop(two)
    assert "Traceback" not in two.log
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_two_workers_answer_on_one_port_and_their_figures_are_one(two: Served) -> None:
    assert len(two.workers) == 2
    with Load(two.port) as load:
        two.until(load.more(100))
    assert load.failed == []
    stats = json.loads(two.admin("stats")[1])
    assert stats["requests"] == stats["misses"] == load.answered == stats["now"]["entries"]
    assert two.count("headstart_requests_total") == load.answered
    assert two.count("headstart_entries ") == load.answered
    [upstream] = json.loads(two.admin("upstreams")[1])["upstreams"]
    assert upstream["in_flight"] == 0
    with contextlib.ExitStack() as open_ones:
        for _ in range(4):  # each worker gets two of them
            connection = http.client.HTTPConnection("127.0.0.1", two.port)
            open_ones.enter_context(contextlib.closing(connection))
            assert ask(connection, "question 1")[1]["x-cache"] == "HIT"


def test_any_worker_explains_a_request(two: Served) -> None:
    for number in range(6):
        connection = http.client.HTTPConnection("127.0.0.1", two.port)
        with contextlib.closing(connection):
            id = ask(connection, f"what is {number}?")[1]["x-headstart-request-id"]
        status, body = two.admin(f"explain/{id}")
        assert (status, json.loads(body)["id"]) == (200, id)
    assert two.admin("explain/unknown")[0] == 404


def test_the_live_page_lists_the_requests_of_all_workers(two: Served) -> None:
    asked = set()
    with contextlib.ExitStack() as open_ones:
        for number in range(6):  # each worker gets some of them
            connection = http.client.HTTPConnection("127.0.0.1", two.port)
            open_ones.enter_context(contextlib.closing(connection))
            asked.add(ask(connection, f"what is {number}?")[1]["x-headstart-request-id"])
    for _ in range(4):
        shown = json.loads(two.admin("live")[1])
        assert {row["id"] for row in shown["requests"]} == asked
        assert sorted((row["at"] for row in shown["requests"]), reverse=True) == [
            row["at"] for row in shown["requests"]
        ]
        assert sum(each["calls"] for each in shown["calls"]) == len(asked)
        assert len(shown["upstreams"]) == 1
    assert json.loads(two.admin("live?model=unknown")[1])["requests"] == []


def test_a_worker_that_is_killed_takes_only_its_own_calls_and_another_starts(two: Served) -> None:
    killed = two.workers[0]
    with Load(two.port, clients=8) as load:
        two.until(load.more(50))
        before = two.count("headstart_requests_total")
        os.kill(killed, signal.SIGKILL)
        two.until(lambda: killed not in two.workers and len(two.workers) == 2)
        two.until(load.more(200))
        after = two.count("headstart_requests_total")
    # About four of the eight clients have a connection to the killed worker. Until the parent has
    # noticed, some of them may get another one to it.
    assert 1 <= len(load.failed) < 8
    assert after > before
    assert "ended (by SIGKILL)" in two.log


def test_a_killed_worker_loses_nothing_that_was_written_before(two: Served) -> None:
    """docs/workers.md: an entry is written within a second, and a row of the books within two."""
    with Load(two.port, clients=8) as load:
        two.until(load.more(300))
        time.sleep(2.0)  # so long they may take
        written = len(load.texts)
        two.until(load.more(300))
        killed = two.workers[0]
        os.kill(killed, signal.SIGKILL)
        two.until(lambda: killed not in two.workers and len(two.workers) == 2)
    connection = http.client.HTTPConnection("127.0.0.1", two.port)
    with contextlib.closing(connection):
        for text in load.texts[:written]:
            assert ask(connection, text)[1]["x-cache"] == "HIT", text
    stop(two)
    with contextlib.closing(sqlite3.connect(two.folder / "kept.db")) as store:
        [(booked,)] = store.execute("SELECT count(*) FROM books")
    assert booked >= written + len(load.texts[:written])


def test_all_workers_use_what_one_learned_of_an_upstream(tmp_path: Path, free_port: int) -> None:
    limited = Status(status=429, headers={"retry-after": "300"})
    provider = Simulator(fault=limited)
    with served(tmp_path, free_port, "--workers", "2", provider=provider) as server:
        with contextlib.ExitStack() as open_ones:
            for number in range(8):  # each worker gets half of them
                connection = http.client.HTTPConnection("127.0.0.1", free_port, timeout=20)
                open_ones.enter_context(contextlib.closing(connection))
                status, _ = ask(connection, f"question {number}")
                assert status == 429
        assert provider.stats.snapshot().calls == 1
        [upstream] = json.loads(server.admin("upstreams")[1])["upstreams"]
        assert upstream["ready_in_s"] > 200


def test_a_counter_does_not_fall_when_a_worker_dies(two: Served) -> None:
    with Load(two.port) as load:
        two.until(load.more(50))
    counted = two.count("headstart_requests_total")
    stats = json.loads(two.admin("stats")[1])
    assert stats["requests"] == counted
    for deaths in (2, 4):
        for worker in two.workers:
            os.kill(worker, signal.SIGKILL)
        two.until(lambda: two.log.count("ended (by SIGKILL)") == deaths)  # noqa: B023 - called now
        two.until(lambda: len(two.workers) == 2)
        assert two.count("headstart_requests_total") == counted == load.answered
        later = json.loads(two.admin("stats")[1])
        same = ("requests", "hits", "misses")
        assert [later[name] for name in same] == [stats[name] for name in same]
        assert later["uptime_s"] > stats["uptime_s"]  # of the server


def test_workers_go_on_without_their_parent_process(two: Served) -> None:
    workers = two.workers
    two.process.kill()
    two.process.wait()
    try:
        two.until(lambda: two.log.count("goes on alone") == 2)
        with Load(two.port) as load:
            two.until(load.more(50))
        assert load.failed == []
        assert two.admin("stats")[0] == 200
        status, body = two.admin("reload", "POST")
        assert status == 422
        assert "only a restart" in body
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
    two.until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_told_to_stop_it_ends_with_all_its_workers(
    two: Served, sent: signal.Signals, status: int
) -> None:
    workers = two.workers
    two.process.send_signal(sent)
    assert two.process.wait(20) == status
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", two.port))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_while_the_last_answer_ends_new_connections_are_refused(
    tmp_path: Path, free_port: int, workers: str
) -> None:
    provider = Simulator(fault=Stall(seconds=6.0))
    arguments = ("--workers", workers)
    with (
        served(tmp_path, free_port, *arguments, provider=provider) as server,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", free_port, timeout=30)) as last,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        last.request("POST", "/v1/chat/completions", json.dumps(body))
        server.until(lambda: provider.stats.snapshot().calls == 1)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: not _connects(free_port))
        assert not select.select([last.sock], [], [], 0.0)[0]  # the answer has not come yet
        assert last.getresponse().status == 200


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_hangup_during_the_start_does_not_end_the_server(
    tmp_path: Path, free_port: int, workers: str
) -> None:
    """A tool that reloads right after the start. Before Python runs our code nothing can help."""
    code = (
        "import os, signal\n"
        "from headstart.cli import serve\n"
        "chosen = serve.chosen_settings\n"
        "serve.chosen_settings = lambda *a: os.kill(os.getpid(), signal.SIGHUP) or chosen(*a)\n"
        "from headstart.__main__ import main\n"
        f"main(['serve', '--workers', '{workers}'])"
    )
    server = Served(tmp_path, free_port, "http://127.0.0.1:9")
    with (tmp_path / "log").open("wb") as log:
        server.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        server.until(lambda: "headstart is ready" in server.log or server.process.poll())
        assert server.process.poll() is None
    finally:
        stop(server)


def test_workers_that_cannot_start_say_why_and_the_server_ends(
    tmp_path: Path, free_port: int
) -> None:
    (tmp_path / "kept.db").write_bytes(b"not a database" * 100)
    with served(tmp_path, free_port, "--workers", "2") as server:
        assert server.process.wait(20) == 2
        assert "kept.db is damaged" in server.log
        assert "worker 0 ended at its start" in server.log
        assert "Traceback" not in server.log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_twenty_reloads_under_load_lose_no_request(
    tmp_path: Path, free_port: int, workers: str
) -> None:
    with served(tmp_path, free_port, "--workers", workers) as server, Load(free_port) as load:
        processes = server.workers
        server.until(load.more(20))
        for number in range(1, 21):
            server.write(f"max_entries = {1000 + number}")
            assert server.admin("reload", "POST") == (200, '{"reloaded":true}')
            config = json.loads(server.admin("config")[1])
            assert config["cache"]["max_entries"] == 1000 + number
        server.until(load.more(20))
        assert server.workers == processes
        # Figures go on.
        answered = load.answered
        assert server.count("headstart_requests_total") >= answered
    assert load.failed == []


def test_an_answer_that_runs_during_a_reload_ends_whole(tmp_path: Path, free_port: int) -> None:
    provider = Simulator("openai")
    with served(tmp_path, free_port, provider=provider) as server:
        connection = http.client.HTTPConnection("127.0.0.1", free_port, timeout=30)
        with contextlib.closing(connection):
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "x/json"}
            )
            reply = connection.getresponse()
            first = reply.read1(10)
            assert server.admin("reload", "POST")[0] == 200
            rest = reply.read()
            assert (first + rest).rstrip().endswith(b"data: [DONE]")
            server.until(lambda: json.loads(server.admin("stats")[1])["now"]["entries"] == 1)
            # The connection is kept, and the new gateway has the answer of the old one.
            _, headers = ask(connection, "hi")
            assert headers["x-cache"] == "HIT"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_broken_file_changes_nothing_and_is_told(
    tmp_path: Path, free_port: int, workers: str
) -> None:
    with served(tmp_path, free_port, "--workers", workers) as server:
        server.write("max_entries = 1")
        assert server.run("reload").returncode == 0  # the file has the port
        server.write("max_entires = 2")
        failed = server.run("reload")
        assert failed.returncode == 1
        assert "max_entires" in failed.stderr
        server.write("[server]\nport = 1")
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: server.log.count("was not reloaded, and nothing has changed") == 2)
        server.write(rest='api_key_env = "NOT_SET_ANYWHERE"')
        failed = server.run("reload", "--url", f"http://127.0.0.1:{free_port}")
        assert failed.returncode == 1
        assert "NOT_SET_ANYWHERE" in failed.stderr
        assert json.loads(server.admin("config")[1])["cache"]["max_entries"] == 1
        with Load(free_port) as load:
            server.until(load.more(20))
        assert load.failed == []
        server.write("max_entries = 3")
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: server.log.count("the configuration was reloaded") == 2)
        assert json.loads(server.admin("config")[1])["cache"]["max_entries"] == 3


def test_settings_that_need_a_restart_are_refused(tmp_path: Path, free_port: int) -> None:
    with served(tmp_path, free_port) as server:
        text = server.config.read_text("utf-8")
        server.config.write_text(text.replace("[server]", "[server]\nworkers = 3"), "utf-8")
        status, body = server.admin("reload", "POST")
        assert status == 422
        assert "server.workers: this changes with a restart only" in body


def test_a_terminal_that_is_closed_stops_the_server(tmp_path: Path, free_port: int) -> None:
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        headstart("serve", "--upstream", "http://127.0.0.1:9", "--port", str(free_port),
                  "--store", "memory:"),
        cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, preexec_fn=take_terminal,  # noqa: PLW1509
    )  # fmt: skip
    with process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"headstart is ready")
        os.close(ours)
        try:
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            process.kill()


@pytest.mark.anyio
async def test_the_worker_with_the_fewest_connections_takes_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headstart.cli.sidecar_server.YIELD_S", 0.02)  # however busy the machine is
    made: list[list[asyncio.Protocol]] = [[], [], []]
    counts = memoryview(array("q", [0, 0, 0, GONE]))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        acceptors = [
            Acceptor(
                listening.dup(),
                counts,
                index,
                open_now=lambda mine=mine: len(mine),  # type: ignore[misc]
                make=lambda mine=mine: _kept(mine),  # type: ignore[misc]
            )
            for index, mine in enumerate(made)
        ]
        port = listening.getsockname()[1]
        writers = []
        for count in range(1, 31):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            async with asyncio.timeout(20):
                while sum(map(len, made)) < count:
                    await asyncio.sleep(0.001)
        assert min(map(len, made)) >= 8  # a worker that waits for others may miss its turn
        assert list(counts) == [*map(len, made), GONE]
        for acceptor in acceptors[:2]:
            await acceptor.aclose()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        await until(lambda: sum(map(len, made)) >= 31)
        await acceptors[2].aclose()
        for each in writers:
            each.close()
            await each.wait_closed()
        for acceptor in acceptors:
            acceptor.listening.close()


class _FullProcess(socket.socket):
    """A socket of a process without free descriptors."""

    asked = 0

    def accept(self) -> Any:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.anyio
async def test_connections_that_cannot_be_accepted_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headstart.cli.sidecar_server.REST_S", 0.001)
    counts = memoryview(array("q", [0]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        full = _FullProcess(fileno=server.dup().detach())
        acceptor = Acceptor(full, counts, 0, open_now=int, make=_Kept)
        with socket.create_connection(server.getsockname()):
            await until(lambda: full.asked >= 5)
        await acceptor.aclose()
        full.close()
    assert caplog.text.count("Too many open files") == 1


class _Kept(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport


def _kept(mine: list[asyncio.Protocol]) -> asyncio.Protocol:
    mine.append(_Kept())
    return mine[-1]


def test_the_limits_of_the_machine_are_divided() -> None:
    settings = Settings(
        server=ServerSettings(max_concurrency=5, max_queue=0, max_connections=7),
        cache=CacheSettings(
            hot_bytes=10, audit=AuditSettings(max_calls_per_hour=1, max_usd_per_day=3.0)
        ),
        encoder=EncoderSettings(threads=4),
    )
    shares = [share_of(settings, index, 3) for index in range(3)]
    assert [each.server.max_concurrency for each in shares] == [2, 2, 1]
    assert [each.server.max_connections for each in shares] == [3, 2, 2]
    assert [each.server.max_queue for each in shares] == [0, 0, 0]
    assert sum(each.cache.hot_bytes for each in shares) == 10
    assert [each.cache.audit.max_calls_per_hour for each in shares] == [1, 0, 0]
    assert [each.cache.audit.max_usd_per_day for each in shares] == [1.0, 1.0, 1.0]
    assert [each.encoder.threads for each in shares] == [2, 1, 1]
    assert share_of(settings, 0, 1).server == settings.server


def test_auto_is_a_worker_for_each_core() -> None:
    assert worker_count(ServerSettings(workers="auto")) == available_cores()
    assert worker_count(ServerSettings(workers=3)) == 3


def test_a_worker_gets_the_settings_as_they_are() -> None:
    upstream = UpstreamSettings(
        base_url="http://127.0.0.1:1/v1", models={"a": "b"}, fields={"x": 1}
    )
    server = ServerSettings(client_keys={"a": "key"}, deadline_s=None, workers="auto")
    settings = checked(Settings(upstream=(upstream,), server=server))
    sent = msgspec.msgpack.encode(settings)
    assert msgspec.msgpack.decode(sent, type=Settings) == settings
