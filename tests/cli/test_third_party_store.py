"""A store from another distribution: the one of the documentation, installed beside Headstart."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from headstart.lab.simulator import Simulator
from support.repository import ROOT
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIDDLEWARE = """
import asyncio, json, sys
from headstart import Endpoint, HeadstartMiddleware

async def app(scope, receive, send):
    await receive()
    head = {"type": "http.response.start", "status": 200}
    await send({**head, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"42"})

async def ask(wrapped):
    sent, bodies = [], [{"type": "http.request", "body": b'{"question": "Why?"}'}]
    async def receive():
        return bodies.pop() if bodies else await asyncio.Event().wait()
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "POST", "path": "/ask", "raw_path": b"/ask",
             "query_string": b"", "headers": [(b"authorization", b"Bearer k")]}
    await wrapped(scope, receive, send)
    print(dict(sent[0]["headers"])[b"cache-status"].decode())

async def main():
    for _ in range(2):
        endpoint = Endpoint("/ask", prompt="question")
        wrapped = HeadstartMiddleware(app, endpoints=[endpoint], store=sys.argv[1])
        await ask(wrapped)
        await wrapped.aclose()

asyncio.run(main())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Install the distribution, as an installer leaves it, and return the environment it is in."""
    text = (ROOT / "docs/configuration.md").read_text()
    _, _, section = text.partition("### A store of your own")
    found = re.findall(r"```(?:toml|python)\n# (\S+)\n(.*?)```", section, re.DOTALL)
    files = dict(found)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    site = tmp_path / "site"
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (site / "logged_store.py").write_text(files["logged_store.py"])
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
    )
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, (str(site), str(ROOT), inherited)))
    return {**os.environ, "PYTHONPATH": path, "HEADSTART_ENCODER__MAX_WAIT_MS": "20000"}


@contextmanager
def serving(environment: dict[str, str], folder: Path, provider: str, port: int) -> Iterator[str]:
    arguments = ["--upstream", provider, "--port", str(port), "--store", "logged:///answers.db"]
    with subprocess.Popen(
        [sys.executable, "-m", "headstart", "serve", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("headstart is ready")
            yield f"http://127.0.0.1:{port}"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def ask(url: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    request = Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"authorization": "Bearer k", "content-type": "application/json"},
    )
    with urlopen(request, timeout=30) as reply:
        reply.read()
        return str(reply.headers["cache-status"])


def test_the_sidecar_serves_a_hit_from_it_after_a_restart(
    environment: dict[str, str], tmp_path: Path, free_port: int
) -> None:
    with serving_in_thread(Simulator(), lifespan="off") as provider:
        with serving(environment, tmp_path, f"{provider}/v1", free_port) as url:
            first = ask(url)
        with serving(environment, tmp_path, f"{provider}/v1", free_port) as url:
            again = ask(url)
    assert "fwd=miss" in first
    assert again.endswith("detail=exact")
    assert (tmp_path / "answers.db").is_file()


def test_the_middleware_serves_a_hit_from_it(environment: dict[str, str], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MIDDLEWARE, "logged:///answers.db"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    first, again = ended.stdout.splitlines()
    assert "fwd=miss" in first
    assert again.endswith("detail=exact")
    assert "found " in ended.stderr


@pytest.mark.parametrize(
    ("store", "status", "said"),
    [
        ("logged:///answers.db", 0, "the configuration is valid"),
        (
            "unheard://host",
            2,
            "redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster, logged",
        ),
        ("unheard://host", 2, "headstart.stores"),
    ],
)
def test_config_check_knows_it_by_its_scheme(
    store: str, status: int, said: str, environment: dict[str, str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headstart", "config", "check", "--wrapped"],
        cwd=tmp_path, env={**environment, "HEADSTART_CACHE__STORE": store},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == status, ended.stderr
    assert said in ended.stdout + ended.stderr
