"""``headstart serve`` as a process in front of a simulated provider, and clients that load it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from headstart.lab.simulator import Simulator
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 60.0


def headstart(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headstart", *arguments]


class Served:
    """A running server. ``log`` is its output so far, on both streams."""

    def __init__(self, folder: Path, port: int, provider: str) -> None:
        self.folder = folder
        self.port = port
        self.provider = provider
        self.config = folder / "headstart.toml"
        self.process: subprocess.Popen[bytes]
        self.write()

    def write(self, cache: str = "", rest: str = "", store: str = "sqlite:///kept.db") -> None:
        """Write the configuration."""
        self.config.write_text(
            f"""[server]
port = {self.port}
[cache]
mode = "exact-only"
store = "{store}"
{cache}
[[upstream]]
name = "sim"
base_url = "{self.provider}/v1"
{rest}
""",
            encoding="utf-8",
        )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(each) for each in children.read_text("utf-8").split()]

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def admin(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Call the admin API over a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, f"/_headstart/{path}")
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def count(self, metric: str) -> float:
        """Return the sum of a metric over all its labels."""
        lines = self.admin("metrics")[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command."""
        return subprocess.run(
            headstart(*arguments),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@contextlib.contextmanager
def served(
    folder: Path, port: int, *arguments: str, provider: Simulator | None = None
) -> Iterator[Served]:
    """Run a provider and ``headstart serve``, which is stopped at the end of the block."""
    with (
        serving_in_thread(provider or Simulator(), lifespan="off") as url,
        (folder / "log").open("wb") as log,
    ):
        server = Served(folder, port, url)
        server.process = start(folder, log, *arguments)
        try:
            server.until(lambda: "headstart is ready" in server.log or server.process.poll())
            yield server
        finally:
            stop(server)


def start(folder: Path, log: IO[bytes], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        headstart("serve", *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def stop(server: Served) -> None:
    """Stop it, with all its workers."""
    workers = server.workers if server.process.poll() is None else []
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        raise


class Load:
    """Clients that send requests without a pause, each over one kept connection."""

    def __init__(self, port: int, clients: int = 8, *, repeats: bool = False) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._repeats = repeats
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        self.texts: list[str] = []
        """The questions that were answered."""
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def answered(self) -> int:
        return len(self.texts)

    def more(self, count: int) -> Callable[[], bool]:
        """Return a condition that holds once ``count`` more requests were answered."""
        enough = self.answered + count
        return lambda: self.answered >= enough

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            while not self._over.is_set():
                text = "the same" if self._repeats else f"question {next(self._numbers)}"
                try:
                    status, _ = ask(connection, text)
                except (OSError, http.client.HTTPException) as error:
                    self.failed.append(repr(error))
                    connection.close()
                else:
                    if status == 200:
                        self.texts.append(text)
                    else:
                        self.failed.append(f"status {status}")


def ask(
    connection: http.client.HTTPConnection, text: str, **fields: Any
) -> tuple[int, http.client.HTTPMessage]:
    """Send a chat request and read its answer."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
    )
    reply = connection.getresponse()
    reply.read()
    return reply.status, reply.headers
