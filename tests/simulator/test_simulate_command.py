"""``headstart simulate`` as a user runs it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from headstart.errors import ConfigError
from headstart.lab.commands.simulate import simulate
from headstart.lab.simulator import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def _running(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command on a free port; yield it and its first line."""
    program = [sys.executable, "-u", "-m", "headstart"]
    arguments = [*program, "simulate", "--port", "0", *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_the_first_line_says_where_and_what_and_is_true() -> None:
    with _running("--profile", "groq", "--seed", "3", "--speed", "50") as (_, line):
        assert line.startswith("simulated provider 'groq' on http://127.0.0.1:")
        assert "seed 3, speed 50x): first token after 120 ms (median), 450-550 tokens/s" in line
        with urlopen(line.split()[4] + "/models") as response:
            assert b"mixtral" in response.read()


def test_ctrl_c_stops_it_cleanly() -> None:
    with _running() as (process, _):
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        assert "stopped after 0 calls" in rest
        assert process.returncode == 0


def test_a_taken_port_is_reported_with_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"port {port} .* choose another one with --port"):
            CliRunner().invoke(simulate, ["--port", port], catch_exceptions=False)


def test_an_address_that_is_not_ours_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1 .* with --host"):
        CliRunner().invoke(simulate, ["--host", "192.0.2.1"], catch_exceptions=False)


def test_list_shows_every_profile_with_price_and_date() -> None:
    result = CliRunner().invoke(simulate, ["--list"])
    assert result.exit_code == 0
    assert "Figures as of" in result.output
    assert "$6.5/$19.5" in result.output
    assert all(f"\n{name} " in result.output for name in PROFILES)


def test_help_has_examples() -> None:
    result = CliRunner().invoke(simulate, ["--help"])
    assert "headstart serve --upstream" in result.output


def test_help_names_every_dialect() -> None:
    result = CliRunner().invoke(simulate, ["--help"])
    for path in ("/v1/chat/completions", "/v1/messages", ":generateContent", "/v2/chat"):
        assert path in result.output


def test_the_weather_can_be_a_name_or_a_file(tmp_path: Path) -> None:
    weather = tmp_path / "weather.toml"
    weather.write_text("[[spell]]\nfault = { fault = 'status', status = 418 }\n")
    with _running("--profile", "instant", "--weather", str(weather)) as (_, line):
        with pytest.raises(HTTPError) as raised:
            urlopen(line.split()[4].rstrip(":") + "/models")
        with raised.value as refused:
            assert refused.code == 418
    for wrong, reason in (("flaping", "did you mean 'flapping'"), ("no.toml", "cannot read")):
        with pytest.raises(ConfigError, match=reason):
            CliRunner().invoke(simulate, ["--weather", wrong], catch_exceptions=False)


def test_a_labelled_stream_is_answered_by_class_in_other_words_each_time(tmp_path: Path) -> None:
    stream = tmp_path / "stream.jsonl"
    stream.write_text('{"prompt": "Where?", "class": "place"}\n')
    with _running("--profile", "instant", "--answers", str(stream), "--vary") as (_, line):
        url = line.split()[4].rstrip(":") + "/chat/completions"
        body = b'{"model": "any", "messages": [{"role": "user", "content": "Where?"}]}'
        told = set()
        for _ in range(3):
            with urlopen(Request(url, body)) as response:
                assert response.headers["x-sim-class"] == "place"
                told.add(response.read().split(b'"content"')[1])
    assert len(told) == 3


def test_vary_needs_a_stream() -> None:
    result = CliRunner().invoke(simulate, ["--vary"])
    assert result.exit_code == 2
    assert "give --answers" in result.output
