"""Listening sockets for the servers of this package; names of, and TLS with, other servers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import sys
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar, cast

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import ClientSession, ThreadedResolver

BACKLOG = 2048
DESCRIPTORS = (65_536, 10_240)
"""The numbers of open files and sockets that a server asks the system for, one after the other:
macOS allows fewer than its own limit says."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port. Raises ConfigError if it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it small writes wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform == "win32":  # there, SO_REUSEADDR lets a second server take the same port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
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
    if sys.platform == "win32":
        return None
    import resource

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    for wanted in DESCRIPTORS:
        allowed = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
        if limit < allowed:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
                limit = allowed
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


MOST_LOOKUPS = 64
"""Most lookups of names at a time. A few upstreams need as many only if their lookups hang."""


class NameLookups:
    """Asks the system for the addresses of names, on daemon threads.

    Its methods are those of an event loop. The loop's own lookups run on threads for which Python
    waits at its end, and a lookup hangs for minutes if no name server answers.
    """

    under_way: ClassVar[list[str]] = []
    """The names that this process asks for now."""

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
        """Return what ``socket.getaddrinfo`` returns. Raises OSError."""
        if len(self.under_way) >= MOST_LOOKUPS:
            raise OSError(None, f"{MOST_LOOKUPS} lookups of names hang")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()

        def look_up() -> None:
            answer = error = None
            try:
                answer = socket.getaddrinfo(host, port, **options)
            except Exception as failure:  # noqa: BLE001 - the caller gets it
                error = failure
            finally:
                self.under_way.remove(host)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, answer, error)

        def tell(answer: Any, error: Exception | None) -> None:
            if found.done():
                return
            if error is None:
                found.set_result(answer)
            else:
                found.set_exception(error)

        self.under_way.append(host)
        threading.Thread(target=look_up, name="headstart-names", daemon=True).start()
        return await found

    async def getnameinfo(self, address: Any, flags: int = 0) -> tuple[str, str]:
        """Return the numbers of an address as texts. It asks nobody."""
        return socket.getnameinfo(address, flags)


def resolver() -> ThreadedResolver:
    """Return a resolver for a session of aiohttp, with lookups that hold up no end."""
    from aiohttp import ThreadedResolver

    # It takes nothing but lookups from its event loop.
    return ThreadedResolver(cast("asyncio.AbstractEventLoop", NameLookups()))


def client_session(*args: Any, **options: Any) -> ClientSession:
    """Return a session of aiohttp that finds addresses with ``resolver``."""
    from aiohttp import ClientSession, TCPConnector

    return ClientSession(*args, connector=TCPConnector(resolver=resolver()), **options)


def reason_of(error: OSError) -> str:
    """Return why a connection failed, in the system's words, because libraries have their own."""
    code = error.errno or 0
    if sys.platform == "win32":
        known = error.winerror or (code if code >= 10_000 else 0)  # the codes of sockets
        if known:
            import ctypes

            return ctypes.FormatError(known).strip().rstrip(".")
    if code > 0:
        return os.strerror(code)
    return error.strerror or type(error).__name__


def tls_of(name: str, ca_file: str | None, own_file: str | None) -> ssl.SSLContext | bool:
    """Return how TLS with an upstream checks its certificate, and what it shows.

    True: as usual. Raises ConfigError if ``ca_file`` or ``client_cert_file`` (``own_file``) cannot
    be used.
    """
    if ca_file is None and own_file is None:
        return True
    with _pem(name, "ca_file", ca_file, "no certificate"):
        context = ssl.create_default_context(cafile=ca_file)
    if own_file is not None:
        with _pem(name, "client_cert_file", own_file, "no certificate with its key"):
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(own_file, password=lambda: b"")
    return context


@contextlib.contextmanager
def _pem(upstream: str, setting: str, file: str | None, lacks: str) -> Iterator[None]:
    """Turn the errors of a file into ConfigError."""
    name = f"upstream {upstream!r}: {setting}: {file}"
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError(f"{name} holds {lacks} in PEM format") from error
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""The codes of OpenSSL for a certificate whose authority is not known."""


def why_no_tls(error: Exception) -> str:
    """Return why there is no TLS with an upstream, for an error of the client library."""
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(found, ssl.SSLCertVerificationError):
        why = f"certificate not accepted: {found.verify_message.rstrip('.')}"
        if found.verify_code in _UNKNOWN_AUTHORITY:
            why += "; for an authority of your own set upstream.ca_file"
        return why
    reason = getattr(found, "reason", None) or ""
    if reason == "WRONG_VERSION_NUMBER":
        return "no TLS is spoken there; for plain HTTP, begin upstream.base_url with http:"
    return f"TLS failed: {reason.lower().replace('_', ' ') or type(found).__name__}"
