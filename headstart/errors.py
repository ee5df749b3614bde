"""Every error that Headstart raises, as one tree.

HeadstartError
├── ConfigError                 start-up; names the setting and the fix
├── RequestError                the caller's fault: 4xx in the caller's dialect
│   ├── InvalidRequest          400
│   ├── Unauthorized            401
│   ├── Forbidden               403, from a web page that may not
│   ├── NoUpstream              404, no upstream speaks the request's dialect
│   ├── RequestTimeout          408, the body did not come in time
│   ├── RequestTooLarge         413
│   ├── Overloaded              429
│   └── NotCached               504, ``Cache-Control: only-if-cached`` on a miss
├── UpstreamError               the provider's fault: 5xx in the caller's dialect
│   ├── UpstreamUnreachable     502, refused, DNS, TLS, reset
│   ├── UpstreamTimeout         504
│   ├── UpstreamRefused         an error status, with the provider's own answer
│   ├── UpstreamUnavailable     503, no upstream may be asked now; 429, for a rate limit
│   └── UpstreamProtocolError   502, an answer that cannot be read
├── StageError                  an optional stage failed: caught in the pipeline, counted, bypassed
│   ├── EncoderError
│   ├── VectorIndexError
│   └── StoreError
└── MissingExtra                an optional dependency is not installed (also an ImportError)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.types import Headers


class HeadstartError(Exception):
    """Base of every error raised by this package."""


class ConfigError(HeadstartError):
    """A setting is missing, unknown or impossible; the message names it and the fix."""


class RequestError(HeadstartError):
    """The request cannot be served as it is. ``status`` and ``code`` go to the caller."""

    status = 400
    code = "invalid_request"


class InvalidRequest(RequestError):
    """The body is not what the endpoint accepts."""


class Unauthorized(RequestError):
    """The caller's key is missing or is not one of ``server.client_keys``."""

    status = 401
    code = "invalid_api_key"


class Forbidden(RequestError):
    """The request comes from another site's page, or to a name that is not the server's."""

    status = 403
    code = "forbidden"


class NoUpstream(RequestError):
    """No upstream speaks the request's dialect. The message names the setting that adds one."""

    status = 404
    code = "no_upstream"


class RequestTimeout(RequestError):
    """The client stopped sending, or sends too slowly: ``server.body_timeout_s``."""

    status = 408
    code = "request_timeout"


class RequestTooLarge(RequestError):
    """The body exceeds ``server.max_body_bytes``, ``max_body_values``, or has a long number."""

    status = 413
    code = "request_too_large"


class Overloaded(RequestError):
    """``server.max_concurrency`` or ``max_relays``, and ``max_queue`` are exhausted."""

    status = 429
    code = "overloaded"


class NotCached(RequestError):
    """The caller allowed only a cached answer and there is none."""

    status = 504
    code = "not_cached"


class UpstreamError(HeadstartError):
    """The provider failed. ``status`` and ``code`` go to the caller.

    ``kind`` says what failed where the type does not: a ``policies.routing.failures.FailureKind``.
    """

    status = 502
    code = "upstream_error"

    def __init__(self, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class UpstreamUnreachable(UpstreamError):
    """No answer could be had: refused, DNS failure, TLS failure or reset."""

    code = "upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    """The provider stayed silent past a timeout or the request's deadline."""

    status = 504
    code = "upstream_timeout"


class UpstreamRefused(UpstreamError):
    """The provider answered with an error, as a status or in place of an answer.

    ``status``, ``headers`` and ``body`` are what the caller is to get, in its own dialect, should
    nobody else answer.
    """

    def __init__(
        self, message: str, *, status: int, headers: Headers, body: bytes, code: str
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = body
        self.code = code


class UpstreamUnavailable(UpstreamError):
    """No upstream may be asked now: breakers are open or rate limits are used up.

    ``retry_after_s`` is when one may be asked again, if that is known. ``limited``: it is the
    provider's rate limit that keeps us from asking.
    """

    status = 503
    code = "upstream_unavailable"

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, limited: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limited = limited
        if limited:
            self.status = 429
            self.code = "rate_limit_exceeded"


class UpstreamProtocolError(UpstreamError):
    """The provider's answer cannot be read, or ended before its terminal event."""

    code = "upstream_protocol_error"


class StageError(HeadstartError):
    """An optional stage failed. The request goes on without it."""

    stage = "stage"


class EncoderError(StageError):
    """The encoder could not embed a prompt."""

    stage = "encoder"


class VectorIndexError(StageError):
    """The vector index could not answer."""

    stage = "index"


class StoreError(StageError):
    """The entry store could not read or write."""

    stage = "store"


class MissingExtra(HeadstartError, ImportError):
    """An optional dependency is absent. The message names the extra to install."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra: pip install 'headstart[{extra}]'")
        self.extra = extra
