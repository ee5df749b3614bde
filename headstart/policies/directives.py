"""The caller's word: request ``Cache-Control`` (RFC 9111, section 5.2.1), and on compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from headstart.errors import InvalidRequest
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.types import Headers

CompressionMode: TypeAlias = Literal["off", "safe", "balanced", "aggressive"]
"""The strictest first."""
_MODES: tuple[CompressionMode, ...] = get_args(CompressionMode)
_COMPRESSED = "compressed:"
MOST_SECONDS = 2**31
"""What a number of seconds counts as that is too large to be one (RFC 9111, section 1.2.2)."""
_DIGITS = len(str(MOST_SECONDS))


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
    compress: CompressionMode | None = None
    """The most that may be done to the prompt; None: whatever is configured."""

    def refuses(self, transforms: Iterable[str]) -> bool:
        """Is an answer with these transforms one to a prompt compressed more than allowed?"""
        if self.compress is None:
            return False
        allowed = _MODES[: _MODES.index(self.compress) + 1]
        done = [each for each in transforms if each.startswith(_COMPRESSED)]
        return any(each.removeprefix(_COMPRESSED) not in allowed for each in done)


_ALLOW_ALL = Directives()


def parse_directives(headers: Headers) -> Directives:
    """Read every ``cache-control`` header, and ``x-headstart-compress``.

    Unknown directives are ignored, unknown modes of compression raise InvalidRequest.

    A ``max-age`` that cannot be read counts as 0, as RFC 9111 asks: rather a miss than an answer
    older than the caller meant.
    """
    values = [value for name, value in headers if name == b"cache-control"]
    compress = asked_compression(headers)
    if not values:
        return _ALLOW_ALL if compress is None else Directives(compress=compress)
    found = dict(_split(item) for item in b",".join(values).split(b","))
    return Directives(
        no_store=b"no-store" in found,
        no_cache=b"no-cache" in found,
        max_age_s=delta_seconds(found[b"max-age"]) if b"max-age" in found else None,
        only_if_cached=b"only-if-cached" in found,
        compress=compress,
    )


def asked_compression(headers: Headers) -> CompressionMode | None:
    """Return what ``x-headstart-compress`` allows, None without it. Raises InvalidRequest."""
    asked: CompressionMode | None = None
    for name, value in headers:
        if name == b"x-headstart-compress":
            mode = value.strip().lower().decode("latin-1")
            if mode not in _MODES:
                raise InvalidRequest(f"x-headstart-compress: use one of {', '.join(_MODES)}")
            asked = stricter(mode, asked)
    return asked


def stricter(mode: CompressionMode, other: CompressionMode | None) -> CompressionMode:
    """Return the mode that changes less."""
    return mode if other is None else min(mode, other, key=_MODES.index)


def compressed(mode: CompressionMode) -> str:
    """Return the transform that says by which mode a prompt was compressed."""
    return _COMPRESSED + mode


def _split(item: bytes) -> tuple[bytes, bytes]:
    name, _, value = item.partition(b"=")
    return name.strip().lower(), value.strip().strip(b'"')


def delta_seconds(value: bytes) -> int:
    """Return delta-seconds; a number that is too large counts as the RFC asks."""
    if not value.isdigit():
        return 0
    digits = value.lstrip(b"0")
    return min(int(digits or b"0"), MOST_SECONDS) if len(digits) <= _DIGITS else MOST_SECONDS
