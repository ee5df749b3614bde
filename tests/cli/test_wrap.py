"""``headstart wrap`` as a process: tools that call through it, and its summary at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from headstart.__main__ import main
from headstart.cli.wrap import _OTHER, TOOLS, Sums, _configuration, environment, savings_text
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.lab.simulator import Simulator
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "headstart", "wrap"]
ASKS_TWICE = """
import os, sys, urllib.request
body = b'{"model":"gpt-4o","messages":[{"role":"user","content":"hello"}]}'
headers = {"authorization": "Bearer k", "content-type": "application/json"}
for _ in range(2):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
print(*sys.argv[1:])
sys.exit(7)
"""
WAITS = """
import os, signal, sys, time
def leave(*_):
    os.write(1, b"left\\n")  # the signal may come while a line is printed
    sys.exit(5)
signal.signal(signal.SIGINT, leave)
print("waits", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with serving_in_thread(Simulator(), lifespan="off") as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, provider: str) -> Path:
    upstream = f'[[upstream]]\npreset = "openai"\nbase_url = "{provider}/v1"\napi_key_env = []\n'
    # An audit of a hit asks the provider once more, in one of twenty runs.
    cache = '[cache]\nstore = "memory:"\naudit.mode = "off"\n\n'
    (tmp_path / "headstart.toml").write_text(cache + upstream)
    return tmp_path


def wrapped(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_tool_asks_the_sidecar_and_its_end_is_that_of_the_command(folder: Path) -> None:
    done = wrapped(folder, sys.executable, "-c", ASKS_TWICE, "--model", "x", "--", "y")
    assert done.stdout == "--model x -- y\n"
    assert done.returncode == 7
    first, second = done.stderr.splitlines()
    assert first.startswith("headstart: 2 requests, 1 answered from the cache")
    assert "saved 50%" in second


def test_a_sidecar_that_runs_is_used_and_goes_on(folder: Path, free_port: int) -> None:
    config = folder / "headstart.toml"
    config.write_text(f"[server]\nport = {free_port}\n\n{config.read_text()}")
    serve = [*COMMAND[:-1], "serve"]
    with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("headstart is ready")
        url = f"http://127.0.0.1:{free_port}"
        words = (sys.executable, "--", "-c", ASKS_TWICE)
        done = [wrapped(folder, *words), wrapped(folder, "--url", url, *words)]
        assert running.poll() is None
        running.kill()
    assert "2 requests, 1 answered" in done[0].stderr
    assert "2 requests, 2 answered" in done[1].stderr, "others' requests before are not counted"


def test_a_sidecar_that_keeps_its_figures_to_itself_is_used_all_the_same(
    folder: Path, free_port: int
) -> None:
    config = folder / "headstart.toml"
    config.write_text(f'[server]\nadmin_token_env = "SECRET"\n\n{config.read_text()}')
    serve = [*COMMAND[:-1], "serve", "--port", str(free_port)]
    variables = {**os.environ, "SECRET": "s" * 40}
    with subprocess.Popen(
        serve, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("headstart is ready")
        url = f"http://127.0.0.1:{free_port}"
        done = wrapped(folder, "--url", url, sys.executable, "--", "-c", ASKS_TWICE)
        running.kill()
    assert done.returncode == 7
    assert "the savings are not known" in done.stderr
    assert "admin token" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals to process groups are POSIX")
def test_a_ctrl_c_is_the_tools_and_the_sidecar_ends_with_it(folder: Path) -> None:
    words = [*COMMAND, sys.executable, "-c", WAITS]
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "waits\n"
        os.killpg(running.pid, signal.SIGINT)
        assert running.stdout.read() == "left\n"
        assert "no request" in running.stderr.read(), "the sidecar lived longer than the tool"
        assert running.wait(60) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_sidecar_ends_also_if_the_terminal_is_closed(folder: Path, name: str) -> None:
    waits = f"import os\nprint(os.environ['OPENAI_BASE_URL'], flush=True)\n{WAITS}"
    with subprocess.Popen(
        [*COMMAND, sys.executable, "-c", waits], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        url = urlsplit(running.stdout.readline().strip())
        socket.create_connection((url.hostname, url.port)).close()
        running.send_signal(getattr(signal, name))
        assert running.wait(60) == 128 + getattr(signal, name)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname, url.port))


def test_modules_beside_the_tool_are_not_the_sidecars(folder: Path) -> None:
    for name in ("click", "queue", "headstart"):
        (folder / f"{name}.py").write_text("raise SystemExit('not this one')")
    command = [sys.executable, "-P", *COMMAND[1:], sys.executable, "-c", "print('ran')"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_codex_gets_a_provider_before_its_own_arguments(folder: Path) -> None:
    codex = folder / "bin" / "codex"
    codex.parent.mkdir()
    codex.write_text(f'#!{sys.executable}\nimport sys\nprint("\\n".join(sys.argv[1:]))\n')
    codex.chmod(0o755)
    variables = {**os.environ, "PATH": f"{codex.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [*COMMAND, "codex", "--", "exec", "hi"],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert words[-4:] == ["-c", 'model_provider="headstart"', "exec", "hi"]
    base_url = next(each for each in words if ".base_url=" in each)
    assert base_url.endswith('/v1"')
    assert "http://127.0.0.1:" in base_url


def test_problems_are_reported_before_the_tool_runs(
    folder: Path, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["no-such-tool"], "not a program on the PATH"),
        (["--url", f"http://127.0.0.1:{free_port}", sys.executable], "does not answer"),
        (["--config", str(folder / "missing.toml"), sys.executable], "missing.toml"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["wrap", *words])
        assert ended.value.code in (1, 2)
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_without_a_configuration_the_tools_provider_gets_the_tools_key(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text(_configuration(TOOLS[name], {}, "http://127.0.0.1:8080"))
    settings = checked(load_settings(file, {}, {}))
    assert [each.preset for each in settings.upstream] == list(TOOLS[name].presets)
    assert not any(each.key_variables for each in settings.upstream)
    assert settings.compression.prompt_cache == "auto"
    assert settings.cache.store == "memory:"


def test_without_a_configuration_the_tools_own_address_gets_the_tools_key(
    tmp_path: Path, provider: str
) -> None:
    variables = {**os.environ, "OPENAI_BASE_URL": provider + "/v1"}
    done = subprocess.run(
        [*COMMAND, sys.executable, "-c", ASKS_TWICE],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "2 requests, 1 answered from the cache" in done.stderr


def test_addresses_in_variables_are_those_of_the_sdks(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    variables = {
        "OPENAI_API_BASE": "https://llm.example.com/v1/",
        "ANTHROPIC_BASE_URL": "https://llm.example.com/anthropic",
        "GOOGLE_GEMINI_BASE_URL": "http://localhost:8080",
    }
    file.write_text(_configuration(_OTHER, variables, "http://127.0.0.1:8080"))
    settings = checked(load_settings(file, {}, {}))
    assert [(each.preset, each.base_url, each.dialect) for each in settings.upstream[:2]] == [
        (None, "https://llm.example.com/v1", "openai"),
        (None, "https://llm.example.com/anthropic/v1", "anthropic"),
    ]
    assert settings.upstream[2].preset == "gemini"  # no sidecar answers at the address


def test_the_variables_of_all_sdks_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert environment("http://h") == {
        "NO_PROXY": "example.org,h",
        "no_proxy": "example.org,h",
        "ANTHROPIC_BASE_URL": "http://h",
        "ANTHROPIC_API_BASE": "http://h",
        "GOOGLE_GEMINI_BASE_URL": "http://h",
        "OPENAI_API_BASE": "http://h/v1",
        "OPENAI_BASE_URL": "http://h/v1",
    }


def test_only_what_grew_is_told() -> None:
    before = Sums(10, 5, 1, 3.0, 1.0, 2.0, 100.0)
    after = Sums(11, 5, 1, 3.0, 1.1, 2.4, 150.0)
    assert savings_text(before, after) == (
        "headstart: 1 request, 0 answered from the cache, 50 tokens of prompts removed\n"
        "headstart: the providers cost $0.1000; without Headstart $0.4000: saved 75%"
    )
