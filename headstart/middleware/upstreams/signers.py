"""Proofs of who asks that differ from call to call, where a fixed header does not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headstart.errors import InvalidRequest
from headstart.middleware.upstreams.aws_signature import SignedRequest, sign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from yarl import URL

    from headstart.middleware.upstreams.aws_signature import AwsKeys


class Signer(Protocol):
    """Authorises calls to one upstream."""

    async def headers(
        self, method: str, url: URL, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> Sequence[tuple[str, str]]:
        """Return the headers to add to a request. ``body`` is None if it is not known yet.

        Raises UpstreamError if there is no proof to be had.
        """


class AwsSigner:
    """Signs calls with the keys of an AWS identity. ``clock`` gives Unix seconds."""

    def __init__(
        self, keys: AwsKeys, *, region: str, service: str, clock: Callable[[], float]
    ) -> None:
        self._keys = keys
        self._region = region
        self._service = service
        self._clock = clock

    async def headers(
        self, method: str, url: URL, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> Sequence[tuple[str, str]]:
        """Return date, token and signature. Raises InvalidRequest without a whole body."""
        if body is None:
            raise InvalidRequest("an upstream at AWS takes no body that is sent as it comes")
        typed = tuple(pair for pair in headers if pair[0] == "content-type")
        asked = SignedRequest(
            method, url.authority, url.raw_path, url.raw_query_string, typed, body
        )
        return sign(
            asked, self._keys, region=self._region, service=self._service, now=self._clock()
        )
