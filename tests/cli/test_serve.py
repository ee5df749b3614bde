"""``headstart serve`` as a process: start, answers, stop, and messages where it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.server
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import websockets.sync.client
import websockets.sync.server
from websockets.exceptions import ConnectionClosed

from headstart.__main__ import main
from headstart.cli.serve import ServeOptions, banner, billed_notes, chosen_settings, with_route
from headstart.config.checks import checked
from headstart.config.providers import lists_models, providers
from headstart.config.strategies import strategy_of
from headstart.middleware import http_protocol
from headstart.settings import (
    CacheSettings,
    RecordSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)
from headstart.sockets import room_for_connections
from support.serving import listens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from websockets.sync.server import ServerConnection

KEYS = {known.variable for known in providers().values()}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headstart", "serve", *arguments]


def without_provider(port: int, *arguments: str) -> list[str]:
    """Return the command of a server on this port whose provider is down."""
    upstream = ("--upstream", "http://127.0.0.1:9", "--store", "memory:")
    return command("--port", str(port), *upstream, *arguments)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in KEYS}


@pytest.fixture
def started(tmp_path: Path, free_port: int) -> Iterator[subprocess.Popen[str]]:
    arguments = without_provider(free_port)
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_serve_says_where_it_listens_is_ready_then_and_stops_cleanly(
    started: subprocess.Popen[str], free_port: int
) -> None:
    assert started.stdout is not None
    first = started.stdout.readline()
    assert first.startswith(f"headstart is ready on http://127.0.0.1:{free_port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/_headstart/ready") as reply:
        assert reply.status == 200
    started.send_signal(signal.SIGINT)
    assert started.wait(20) in (0, 130)


def test_the_access_log_has_a_line_for_a_request_whose_provider_is_down(
    tmp_path: Path, free_port: int
) -> None:
    arguments = without_provider(free_port, "--access-log", "json")
    body = b'{"model":"m","messages":[{"role":"user","content":"secret words"}]}'
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headstart is ready")
        url = f"http://127.0.0.1:{free_port}/v1/chat/completions"
        headers = {"authorization": "Bearer sk-secret", "content-type": "application/json"}
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(urllib.request.Request(url, body, headers))
        failed.value.close()
        while not (text := process.stdout.readline()).startswith("{"):
            assert process.poll() is None
        process.kill()
    said = json.loads(text)
    assert (said["endpoint"], said["status"]) == ("/v1/chat/completions", 502)
    assert said["error"]
    assert "secret" not in text


def get(port: int, path: str) -> tuple[int, dict[str, str], str]:
    """Ask over a connection of its own, which the caller offers to keep."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"connection": "keep-alive"})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode()


@pytest.fixture
def draining(tmp_path: Path, free_port: int, request: Any) -> Iterator[subprocess.Popen[str]]:
    """A server that was told to stop. The parameter is its ``server.drain_s``."""
    arguments = without_provider(free_port)
    variables = environment() | {"HEADSTART_SERVER__DRAIN_S": request.param}
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headstart is ready")
        process.send_signal(signal.SIGTERM)
        while not process.stdout.readline().startswith("draining"):
            assert process.poll() is None
        yield process
        process.kill()


@pytest.mark.parametrize("draining", ["3600"], indirect=True)
def test_told_to_stop_it_is_unready_but_still_answers_until_told_again(
    draining: subprocess.Popen[str], free_port: int
) -> None:
    status, _, body = get(free_port, "/_headstart/ready")
    assert (status, json.loads(body)["status"]) == (503, "draining")
    status, headers, _ = get(free_port, "/_headstart/health")
    assert (status, headers["connection"]) == (200, "close")
    draining.send_signal(signal.SIGTERM)
    assert draining.wait(20) == 0


@pytest.mark.parametrize("draining", ["0.3"], indirect=True)
def test_a_drained_server_stops_by_itself(draining: subprocess.Popen[str]) -> None:
    assert draining.wait(20) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_whose_start_waits_for_its_store_can_be_stopped(
    workers: int, tmp_path: Path, free_port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=600"
        arguments = without_provider(free_port, "--store", store, "--workers", str(workers))
        with subprocess.Popen(
            arguments, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        ) as process:
            asking, _ = silent.accept()  # the start has reached the store
            with asking:
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_server_ends_although_a_thread_hangs(
    sent: signal.Signals, status: int, tmp_path: Path, free_port: int
) -> None:
    hang = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    program = [sys.executable, "-c", f"{hang}; from headstart.__main__ import main; main()"]
    arguments = program + without_provider(free_port)[3:]
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headstart is ready")
        process.send_signal(sent)
        assert process.wait(20) == status


def test_a_second_ctrl_c_ends_requests_without_a_word(tmp_path: Path, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        upstream = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        arguments = command("--port", str(free_port), "--upstream", upstream, "--store", "memory:")
        with subprocess.Popen(
            arguments,
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("headstart is ready")
            with socket.create_connection(("127.0.0.1", free_port)) as client:
                client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
                asking, _ = silent.accept()
                with asking:
                    process.send_signal(signal.SIGINT)
                    while listens(free_port) and process.poll() is None:
                        time.sleep(0.05)
                    process.send_signal(signal.SIGINT)
                    assert process.wait(20) == 130
            assert process.stderr is not None
            assert process.stderr.read() == ""


def test_a_server_starts_although_its_standard_streams_are_closed(
    tmp_path: Path, free_port: int
) -> None:
    arguments = shlex.join(without_provider(free_port))
    shell = ["/bin/sh", "-c", f"exec {arguments} <&- >&- 2>&-"]
    with subprocess.Popen(shell, cwd=tmp_path, env=environment()) as process:
        while not listens(free_port):
            assert process.poll() is None
            time.sleep(0.05)
        assert get(free_port, "/_headstart/ready")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_server_says_that_it_does_not_use_the_proxy_of_the_environment(
    tmp_path: Path, free_port: int
) -> None:
    variables = environment() | {"HTTP_PROXY": "http://user:secret@proxy:3128"}
    with subprocess.Popen(
        without_provider(free_port),
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == (
            "note: HTTP_PROXY is set, and Headstart does not use it; set upstream.proxy if "
            "providers are reached through it\n"
        )
        process.kill()


async def swallowing_start() -> None:
    """Swallow one cancellation, as libraries do that connect at this moment."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await asyncio.sleep(60)


def test_a_start_that_swallows_its_cancellation_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "CANCELS_AGAIN_S", 0.05)

    async def end() -> bool:
        server = http_protocol.DrainingServer(
            uvicorn.Config("unused"), drain_s=lambda: 0.0, on_drain=lambda: None
        )
        asyncio.get_running_loop().call_later(0.05, server.handle_exit, signal.SIGTERM, None)
        async with asyncio.timeout(10) as limit:
            completed = await server.completes(swallowing_start)
        assert not limit.expired()
        return completed

    assert asyncio.run(end()) is False


def test_a_server_goes_on_when_nobody_reads_its_output_any_more(
    tmp_path: Path, free_port: int
) -> None:
    arguments = without_provider(free_port, "--access-log", "text")
    log = tmp_path / "errors.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            arguments,
            cwd=tmp_path,
            env=environment() | {"HEADSTART_SERVER__DRAIN_S": "0.3"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headstart is ready")
        process.stdout.close()
        reload = urllib.request.Request(
            f"http://127.0.0.1:{free_port}/_headstart/reload", method="POST"
        )
        with urllib.request.urlopen(reload) as reply:
            assert reply.status == 200
        for _ in range(3):
            assert get(free_port, "/v1/models")[0] == 502
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    said = log.read_text()
    assert "Traceback" not in said
    assert said.count("lines of the access log are lost: Broken pipe") == 1


def test_a_server_that_is_told_to_stop_closes_its_websockets(
    tmp_path: Path, free_port: int
) -> None:
    def echo(socket: ServerConnection) -> None:
        for message in socket:
            socket.send(message)

    with websockets.sync.server.serve(echo, "127.0.0.1", 0) as provider:
        thread = threading.Thread(target=provider.serve_forever)
        thread.start()
        port = provider.socket.getsockname()[1]
        arguments = command(
            "--upstream", f"http://127.0.0.1:{port}", "--port", str(free_port),
            "--store", "memory:", "--log-level", "debug",
        )  # fmt: skip
        with subprocess.Popen(
            arguments, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline().startswith("headstart is ready")
            url = f"ws://127.0.0.1:{free_port}/v1/realtime?key=secret-of-the-query"
            with websockets.sync.client.connect(url, proxy=None) as client:
                client.send("secret-of-a-message")
                assert client.recv(20) == "secret-of-a-message"
                process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed):
                    client.recv(20)
                assert client.close_code == 1012
            _, log = process.communicate(timeout=20)
        provider.shutdown()
        thread.join()
    assert "secret" not in log


def test_its_limits_for_unfinished_requests_are_in_force(tmp_path: Path, free_port: int) -> None:
    arguments = without_provider(free_port)
    variables = environment() | {
        "HEADSTART_SERVER__HEAD_TIMEOUT_S": "0.2",
        "HEADSTART_SERVER__BODY_TIMEOUT_S": "0.2",
        "HEADSTART_SERVER__MAX_CONNECTIONS": "2",
    }
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("headstart is ready")
            address = ("127.0.0.1", free_port)
            with socket.create_connection(address, 20) as silent:
                assert silent.recv(1) == b""
            with socket.create_connection(address, 20) as half:
                half.sendall(head)
                assert half.recv(100).startswith(b"HTTP/1.1 408")
            with contextlib.ExitStack() as several:
                open_ones = [
                    several.enter_context(socket.create_connection(address, 20)) for _ in range(3)
                ]
                open_ones[2].sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert open_ones[2].recv(100).startswith(b"HTTP/1.1 503")
        finally:
            process.kill()


def test_room_for_connections_leaves_half_of_the_descriptors() -> None:
    room = room_for_connections()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert room is None or 0 < room <= limit // 2


def test_a_mac_that_allows_fewer_descriptors_than_it_says_gives_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(256, resource.RLIM_INFINITY)]

    def set_limit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 20_000:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert room_for_connections() == 5_120


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (ServerSettings(), 0.0),
        (ServerSettings(host="0.0.0.0"), 5.0),
        (ServerSettings(drain_s=2.0), 2.0),
        (ServerSettings(host="0.0.0.0", drain_s=0.0), 0.0),
    ],
)
def test_only_a_server_that_others_can_reach_drains_by_default(
    server: ServerSettings, expected: float
) -> None:
    assert server.effective_drain_s == expected


def test_a_proxy_on_this_machine_is_known_by_its_own_address(
    tmp_path: Path, free_port: int
) -> None:
    config = tmp_path / "headstart.toml"
    config.write_text(
        f"""[server]
port = {free_port}
trusted_proxies = ["127.0.0.1"]
[cache]
mode = "exact-only"
store = "memory:"
scope = "header:x-tenant"
[[upstream]]
name = "gone"
base_url = "http://127.0.0.1:9/v1"
""",
        encoding="utf-8",
    )
    asked = urllib.request.Request(
        f"http://127.0.0.1:{free_port}/v1/chat/completions",
        data=b'{"model":"m","messages":[{"role":"user","content":"hello"}]}',
        headers={"x-tenant": "a", "x-forwarded-for": "203.0.113.7"},
    )
    arguments = command("--config", str(config))
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(urllib.error.HTTPError) as answered:
                urllib.request.urlopen(asked, timeout=20)
            with answered.value as reply:
                assert "fwd=miss" in reply.headers["cache-status"]
        finally:
            process.kill()


def test_serve_refuses_headers_without_end(started: subprocess.Popen[str], free_port: int) -> None:
    assert started.stdout is not None
    started.stdout.readline()
    with socket.create_connection(("127.0.0.1", free_port), timeout=20) as caller:
        caller.sendall(b"GET /_headstart/ready HTTP/1.1\r\nhost: h\r\nx-bomb: ")
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            caller.sendall(b"b" * (4 << 20))
        assert caller.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    ("scope", "sharers"),
    [
        ("credential", "callers with the same key"),
        ("shared", "all callers"),
        ("header:x-team", "callers with the same x-team"),
    ],
)
def test_serve_says_who_shares_answers_and_where_the_page_is(scope: str, sharers: str) -> None:
    lines = banner(Settings(cache=CacheSettings(scope=scope)), 8080)
    assert f"; shared by {sharers}; store " in lines
    assert "page      http://127.0.0.1:8080/_headstart/\n" in f"{lines}\n"


def test_serve_says_what_it_promises_and_what_it_serves_before() -> None:
    strict = Settings(cache=CacheSettings(max_error=0.001))
    assert (
        "  learning  at most 2.0% of the semantic hits wrong; learns from every miss; audits in "
        "the background\n"
        "  at first  rewordings from similarity 0.98 on, later from 0.9 on, or with the same "
        "words; without this promise until enough is learned\n"
    ) in banner(Settings(), 8080)
    assert "  at first  only exact repeats, until enough is learned\n" in banner(strict, 8080)


def test_serve_says_when_prompts_are_recorded() -> None:
    assert "record" not in banner(Settings(), 8080)
    on_ipv6 = banner(Settings(server=ServerSettings(host="::1")), 8080)
    assert "ready on http://[::1]:8080 " in on_ipv6
    recording = Settings(record=RecordSettings(enabled=True, path="log.jsonl"))
    assert "record    on: log-DATE.jsonl (prompts and answers in the clear)" in banner(
        recording, 8080
    )


NO_KEYS = """upstream 'groq': the variable GROQ_API_KEY (upstream.api_key_env) is not set
upstream 'together': the variable TOGETHER_API_KEY (upstream.api_key_env) is not set"""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no upstream: add an [[upstream]]"),
        (["--upstream", "ftp://x"], "'ftp://x' must start with http"),
        (["--upstream", "http://127.0.0.1:9", "--store", "sqlite:///damaged.db"], "cache.store"),
        (["--upstream", "http://127.0.0.1:9", "--port", "{taken}"], "--port"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--race", "groq,together"], NO_KEYS),
    ],
)
def test_serve_names_the_reason_why_it_cannot_start(
    arguments: list[str], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "damaged.db").write_bytes(b"not a database" * 100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            command(*(part.replace("{taken}", port) for part in arguments)),
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--race", "groq,nobody"], "'nobody' is neither an [[upstream]] nor a preset"),
        (["--race", "groq,openai", "--model", "gpt-oss-20b"], "openai is not known to serve"),
        (["--race", "groq"], "--race: needs at least two providers"),
        (["--upstream", "groq"], "use https://api.groq.com/openai/v1, or set GROQ_API_KEY"),
        (["--upstream", "bedrock"], 'use an [[upstream]] with preset = "bedrock"'),
        (["--upstream", "api.openai.com/v1"], "must start with http:// or https://"),
        (["--race", "groq,together", "--hedge", "groq,together"], "exclude each other"),
        (["--model", "gpt-oss-20b"], "one of --race"),
        (["--dialect", "gemini"], "--dialect goes with --upstream"),
    ],
)
def test_a_route_that_cannot_be_is_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", *arguments])
    assert left.value.code == 2
    assert reason in capsys.readouterr().err


def test_an_upstream_on_the_command_line_speaks_the_named_dialect() -> None:
    url = "http://127.0.0.1:9"
    for dialect, expected in (("anthropic", "anthropic"), (None, "openai")):
        settings, _ = chosen_settings(ServeOptions(upstream=url, dialect=dialect))
        assert [(each.base_url, each.speaks) for each in settings.upstream] == [(url, expected)]


def test_a_race_of_presets_needs_no_file() -> None:
    settings = checked(with_route(Settings(), "race", "groq, together", "llama-3.3-70b"))
    assert [each.name for each in settings.upstream] == ["groq", "together"]
    [route] = settings.route
    assert route.match.model == "llama-3.3-70b"
    assert strategy_of(route).strategy == "race"
    assert billed_notes(settings) == ["note: groq bills cancelled calls in full"]
    assert "route     race: race of groq, together for llama-3.3-70b" in banner(settings, 8080)


def test_a_route_takes_upstreams_of_the_file_by_name() -> None:
    mine = UpstreamSettings(name="mine", base_url="http://127.0.0.1:1/v1", models={"m": "big"})
    settings = checked(with_route(Settings(upstream=(mine,)), "fallback", "mine,groq", None))
    assert [each.name for each in settings.upstream] == ["mine", "groq"]
    assert settings.upstream[0].base_url == mine.base_url
    assert "fallback of mine, groq for all models" in banner(settings, 8080)


class Lists(http.server.BaseHTTPRequestHandler):
    """A server that lists a model, or that is none of ours."""

    answer = b'{"object": "list", "data": [{"id": "m"}]}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Greets(Lists):
    answer = b"<h1>hello</h1>"


@pytest.mark.parametrize(("handler", "found"), [(Lists, True), (Greets, False)])
def test_a_server_on_this_machine_is_known_by_the_models_it_lists(
    handler: type[Lists], found: bool
) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert lists_models(f"http://127.0.0.1:{server.server_port}/v1") is found
        server.shutdown()
        thread.join()
    assert not lists_models(f"http://127.0.0.1:{server.server_port}/v1")
