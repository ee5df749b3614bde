"""Whether a request may come from where it comes from: another site's page, or through a proxy.

A browser on this machine reaches a server here for any page that it shows, also one that reached it
under a name of the page's own (DNS rebinding). A page knows no key; but where none is needed it
could spend the operator's key, or read what is cached. Browsers name the page's origin and how it
relates to the server (``Origin``, ``Sec-Fetch-Site``); other clients send neither, and pass.

The content type decides nothing. Browsers send ``Origin`` with each POST to another site, also with
a form's or a plain text's content type, and curl sends a form's content type without being asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

from headstart.policies.caller_headers import tells_where

if TYPE_CHECKING:
    from headstart.types import Headers

_OWN_SITE = (b"same-origin", b"none")
"""``Sec-Fetch-Site`` of the server's own pages, and of an address that the user typed."""
_FORWARDING = frozenset((b"cdn-loop", b"cf-ray", b"via"))
"""What proxies add beside the caller's address."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:@/\[\]]+))(?::[0-9]*)?")
"""A name, or an IPv6 address in brackets, with or without a port."""
_SHOWN = 100
"""Characters of a caller's header in a message."""


@dataclass(frozen=True)
class OriginRules:
    """``hosts``: names of the server beside ``localhost`` and loopback addresses; None: any name.

    ``origins``: patterns of other origins whose pages may send requests. ``instead`` names the
    setting of a secret that makes these rules unnecessary.
    """

    hosts: frozenset[str] | None = frozenset()
    origins: tuple[str, ...] = ()
    instead: str = "server.client_keys"

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request is refused, or None if it may come in."""
        hosts, origins, foreign = [], [], False
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1").lower())
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site" and value not in _OWN_SITE:
                foreign = True
        for host in hosts or [""]:
            if not (self._is_named(_name(host)) or _is_local(host)):
                return (
                    f"this server does not answer to the host {_shown(host)}: add its name to "
                    f"server.allowed_hosts, or set {self.instead}"
                )
        for value in origins:
            origin = value.decode("latin-1").lower()
            if origin.partition("://")[2] not in hosts and not self.allows(value):
                return (
                    f"pages of the origin {_shown(origin)} may not use this server: add the origin "
                    f"to server.allowed_origins, or set {self.instead}"
                )
        if foreign and not origins:
            return (
                "a page of another site may not use this server (Sec-Fetch-Site); "
                f"{self.instead} opens it to all who know a key"
            )
        return None

    def _is_named(self, name: str) -> bool:
        return self.hosts is None or name in self.hosts or f"{name}." in self.hosts

    def allows(self, origin: bytes) -> bool:
        """Return whether pages of another origin may send requests."""
        text = origin.decode("latin-1").lower()
        # An IPv6 address in brackets is no set of characters.
        patterns = [pattern.lower().replace("[", "[[]") for pattern in self.origins]
        return any(fnmatchcase(text, pattern) for pattern in patterns)


def _name(host: str) -> str:
    """Return a host without its port and without the root's dot; "" if it is none."""
    match = _HOST.fullmatch(host)
    return "" if match is None else str(match[1] or match[2].removesuffix("."))


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    name = _name(host)
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost"
    # Not every Python release looks into a mapped address.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def forwarded(headers: Headers, http_version: str) -> str | None:
    """Return what tells that a proxy passed a request on, or None.

    nginx, unless told otherwise, adds no header, but speaks HTTP/1.0.
    """
    for name, _ in headers:
        if (
            name in _FORWARDING
            or tells_where(name)
            or name.startswith((b"x-forwarded-", b"x-original-"))
        ):
            return name.decode("latin-1").title()
    return f"HTTP/{http_version}" if http_version.startswith("1.0") else None


def _shown(text: str) -> str:
    return (
        repr(text[:_SHOWN]) if text.isprintable() and text.isascii() else repr(ascii(text)[:_SHOWN])
    )
