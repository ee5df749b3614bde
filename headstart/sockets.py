"""Listening sockets for the servers of this package, and their addresses."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from ipaddress import ip_address

from headstart.errors import ConfigError

BACKLOG = 2048
DESCRIPTORS = 65_536
"""The number of open files and sockets that a server asks the system for."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port. Raises ConfigError if it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it small writes wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is already in use; choose another one with --port"
            ) from error
        fix = (
            "choose one above 1023 with --port"
            if error.errno == errno.EACCES
            else "name an address of this machine with --host"
        )
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; {fix}"
        ) from error
    return sock


def room_for_connections() -> int | None:
    """Return the largest number of client connections; None: there is no limit.

    It is half of the files and sockets that the process may open, so that upstream connections and
    files have room. The function first raises the process's limit as far as the system allows.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if limit == resource.RLIM_INFINITY:
        return None
    if limit < wanted:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            limit = wanted
    return max(1, limit // 2)


def url_of(sock: socket.socket) -> str:
    """Return the base URL of a listening socket, without a path."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback_host(host: str) -> bool:
    """Return whether only this machine can reach a bind address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def reason_of(error: OSError) -> str:
    """Return why a connection failed, in the system's words, because libraries have their own."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__
