"""``import headstart`` is quick, and no part of the package loads what it does not need yet."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

HEAVY = {
    "aiohttp", "faiss", "litestar", "numpy", "onnxruntime", "prometheus_client", "redis", "rich",
    "tiktoken", "tokenizers", "uvicorn",
}  # fmt: skip
NOT_FOR_SERVING = {"litestar", "opentelemetry", "redis", "rich", "torch", "transformers"}
LIMIT_S = 0.1

PROBE = """
import json, sys, time
began = time.process_time()
import headstart
print(json.dumps([time.process_time() - began, sorted(sys.modules)]))
"""

SERVE = """
import asyncio, json, sys
from headstart.settings import CacheSettings, Settings, UpstreamSettings
from headstart.sidecar import build_sidecar

async def get(app, path):
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
             "query_string": b"", "headers": [(b"host", b"localhost")], "root_path": "",
             "http_version": "1.1", "scheme": "http", "server": ("localhost", 80),
             "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"}, "extensions": {}}
    await app(scope, receive, send)
    return [sent[0]["status"], sorted(sys.modules)]

async def main():
    settings = Settings(
        cache=CacheSettings(store="memory:"),
        upstream=(UpstreamSettings(base_url="http://127.0.0.1:9/v1", name="one"),),
    )
    app = build_sidecar(settings)
    await app.running()
    found = [await get(app, f"/_headstart/{path}") for path in ("health", "ready", "stats")]
    await app.aclose()
    print(json.dumps(found))

asyncio.run(main())
"""


def run(script: str) -> Any:
    """Run a script in a fresh interpreter; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def probe() -> tuple[float, set[str]]:
    """Import headstart in a fresh interpreter; return its CPU seconds and what it loaded."""
    seconds, loaded = run(PROBE)
    return seconds, set(loaded)


def test_import_loads_nothing_heavy() -> None:
    _, loaded = probe()
    assert not HEAVY & loaded


def test_import_takes_under_a_tenth_of_a_second_of_cpu() -> None:
    # The best of a few: the first compiles bytecode, and a busy machine only ever adds.
    assert min(probe()[0] for _ in range(3)) < LIMIT_S


def test_a_running_server_that_is_only_probed_loads_no_admin_and_no_other_store() -> None:
    (alive, _), (ready, probed), (stats, asked) = run(SERVE)
    assert (alive, ready, stats) == (200, 200, 200)
    assert not NOT_FOR_SERVING & set(probed)
    assert "litestar" in asked
