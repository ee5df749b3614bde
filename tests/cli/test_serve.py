"""``headstart serve`` as a process: it starts, answers, stops, and says why it cannot start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest

from headstart.cli.serve import banner
from headstart.config import RecordSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = ("OPENAI_API_KEY", "GROQ_API_KEY", "TOGETHER_API_KEY", "CEREBRAS_API_KEY")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from headstart.cli import main; main()", "serve", *arguments]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in KEYS}


@pytest.fixture
def started(tmp_path: Path, free_port: int) -> Iterator[subprocess.Popen[str]]:
    arguments = command(
        "--upstream", "http://127.0.0.1:9", "--port", str(free_port), "--store", "memory:"
    )
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_it_says_where_it_listens_is_ready_then_and_stops_cleanly(
    started: subprocess.Popen[str], free_port: int
) -> None:
    assert started.stdout is not None
    first = started.stdout.readline()
    assert first.startswith(f"headstart is ready on http://127.0.0.1:{free_port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/_headstart/ready") as reply:
        assert reply.status == 200
    started.send_signal(signal.SIGINT)
    assert started.wait(20) in (0, 130)


def test_it_refuses_headers_without_end(started: subprocess.Popen[str], free_port: int) -> None:
    assert started.stdout is not None
    started.stdout.readline()
    with socket.create_connection(("127.0.0.1", free_port), timeout=20) as caller:
        caller.sendall(b"GET /_headstart/ready HTTP/1.1\r\nhost: h\r\nx-bomb: ")
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            caller.sendall(b"b" * (4 << 20))
        assert caller.recv(12) == b"HTTP/1.1 400"


def test_it_says_when_prompts_are_recorded() -> None:
    assert "record" not in banner(Settings(), 8080)
    recording = Settings(record=RecordSettings(enabled=True, path="log.jsonl"))
    assert "record    on: log.jsonl (prompts and answers in the clear)" in banner(recording, 8080)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no upstream: add an [[upstream]]"),
        (["--upstream", "ftp://x"], "upstream[0].base_url"),
        (["--upstream", "http://127.0.0.1:9", "--store", "sqlite:///damaged.db"], "cache.store"),
        (["--upstream", "http://127.0.0.1:9", "--port", "{taken}"], "--port"),
        (["--config", "missing.toml"], "missing.toml"),
    ],
)
def test_it_names_what_keeps_it_from_starting(
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
