"""The caller's word on caching: request ``Cache-Control`` (RFC 9111, section 5.2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.types import Headers


class Directives(Frozen, frozen=True, kw_only=True):
    """What a caller allows. The default allows everything."""

    no_store: bool = False
    """Neither store the answer nor join it with others' calls."""
    no_cache: bool = False
    """Do not answer from the cache; the fresh answer may be stored."""
    max_age_s: int | None = None
    """Oldest stored answer the caller accepts."""
    only_if_cached: bool = False
    """Answer from the cache or with 504, never from an upstream."""


_ALLOW_ALL = Directives()


def parse_directives(headers: Headers) -> Directives:
    """Read every ``cache-control`` header. Unknown directives are ignored.

    A ``max-age`` that cannot be read counts as 0, as RFC 9111 asks: rather a miss than an answer
    older than the caller meant.
    """
    values = [value for name, value in headers if name == b"cache-control"]
    if not values:
        return _ALLOW_ALL
    found = dict(_split(item) for item in b",".join(values).split(b","))
    return Directives(
        no_store=b"no-store" in found,
        no_cache=b"no-cache" in found,
        max_age_s=_seconds(found[b"max-age"]) if b"max-age" in found else None,
        only_if_cached=b"only-if-cached" in found,
    )


def _split(item: bytes) -> tuple[bytes, bytes]:
    name, _, value = item.partition(b"=")
    return name.strip().lower(), value.strip().strip(b'"')


def _seconds(value: bytes) -> int:
    return int(value) if value.isdigit() else 0
