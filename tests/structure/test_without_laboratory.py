"""The published package works when the folder of its laboratory is deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from support.command import COMMAND
from support.repository import ROOT
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Four."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, unpack it, and delete the laboratory."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*build, str(folder), str(ROOT)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    shutil.rmtree(site / "headstart" / "lab")
    return site


def environment(installed: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(installed),
        check=False,
        capture_output=True,
        text=True,
    )


def test_help_lists_the_commands_that_are_there(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "serve " in done.stdout
    assert "report " in done.stdout
    assert "simulate " not in done.stdout


def test_a_command_of_the_laboratory_says_where_it_is(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "simulate")
    assert done.returncode == 2
    assert "laboratory" in done.stderr
    assert str(installed / "headstart" / "lab") in done.stderr.replace("\n", "")
    assert "pip install" in done.stderr


async def provider(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})
        return
    while (await receive())["more_body"]:
        pass
    body = json.dumps(ANSWER).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def ask(url: str) -> str:
    """Send one request; return how the cache treated it."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Two plus two?"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer key"},
    )
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["choices"][0]["message"]["content"] == "Four."
        return str(response.headers["x-cache"])


def test_the_proxy_serves_from_its_cache_and_reports(
    installed: Path, tmp_path: Path, free_port: int
) -> None:
    with serving_in_thread(provider) as upstream:
        arguments = [
            "serve", "--upstream", upstream, "--port", str(free_port),
            "--store", "sqlite:///books.db",
        ]  # fmt: skip
        with subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment(installed),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                assert str(free_port) in process.stdout.readline()
                url = f"http://127.0.0.1:{free_port}"
                assert [ask(url), ask(url)] == ["MISS", "HIT"]
            finally:
                process.terminate()
                process.wait()
    done = run(installed, tmp_path, "report", "--store", "sqlite:///books.db", "--json")
    assert done.returncode == 0, done.stderr
    (endpoint,) = json.loads(done.stdout)["endpoints"]
    assert endpoint["outcomes"]["exact"] == 1
