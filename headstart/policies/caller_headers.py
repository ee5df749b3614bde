"""Which headers and query parameters tell callers apart, and which are secrets of theirs.

A provider, or the app behind the middleware, may know its users by any header. So a header tells
callers apart unless it is known to say nothing about who is calling.
"""

from __future__ import annotations

from functools import lru_cache

KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
"""Headers in which the providers' own client libraries send a key."""


def _names(text: str) -> frozenset[bytes]:
    return frozenset(text.encode().split())


_SILENT = _names(
    # How the body is written and what answer is wanted (RFC 9110, 9111, 9213, 9218).
    "accept accept-charset accept-encoding accept-language cache-control content-digest "
    "content-disposition content-encoding content-language content-length content-md5 "
    "content-type date digest expect if-match if-modified-since if-none-match if-range "
    "if-unmodified-since pragma priority range repr-digest want-digest "
    # One connection's affair.
    "connection http2-settings keep-alive max-forwards proxy-connection te trailer "
    "transfer-encoding upgrade "
    # What a browser tells of itself and of the page.
    "alt-used device-memory dnt downlink dpr early-data ect origin referer rtt save-data sec-gpc "
    "sec-purpose upgrade-insecure-requests user-agent viewport-width width x-requested-with "
    # The name of one request, for logs, traces and retries.
    "b3 baggage correlation-context correlation-id elastic-apm-traceparent grpc-trace-bin "
    "idempotency-key newrelic request-context request-id sentry-trace trace-id traceparent "
    "tracestate uber-trace-id x-amzn-requestid x-amzn-trace-id x-client-request-id "
    "x-cloud-trace-context x-correlation-id x-idempotency-key x-ms-client-request-id "
    "x-ms-request-id x-ot-span-context x-queue-start x-request-id x-request-start x-span-id "
    "x-trace-id "
    # The way through proxies.
    "cdn-loop cf-ray cf-visitor via x-amz-cf-id x-envoy-attempt-count "
    "x-envoy-expected-rq-timeout-ms x-forwarded-port x-forwarded-prefix x-forwarded-proto "
    "x-forwarded-scheme x-forwarded-server x-forwarded-ssl x-scheme "
    # What client libraries and apps say of themselves.
    "anthropic-dangerous-direct-browser-access http-referer openai-beta x-client-name "
    "x-client-version x-goog-api-client x-goog-request-params x-openrouter-categories "
    "x-openrouter-title x-server-timeout x-title "
    # Part of every cache key anyway (PROTOCOL_HEADERS).
    "anthropic-version anthropic-beta anthropic-user-profile-id anthropic-workspace-id "
    "openai-organization openai-project x-goog-fieldmask"
)
_SILENT_BEGINNINGS = (
    b"sec-ch-",
    b"sec-fetch-",
    b"x-b3-",
    b"x-datadog-",
    b"x-fern-",
    b"x-headstart-",
    b"x-stainless-",
)
_HOSTS = _names("host x-forwarded-host")
"""The name that was asked for: an app may have a tenant for each."""
_ADDRESSES = _names(
    "cf-connecting-ip cf-connecting-ipv6 cf-ipcountry fastly-client-ip fly-client-ip forwarded "
    "true-client-ip x-azure-clientip x-azure-socketip x-client-ip x-cluster-client-ip "
    "x-envoy-external-address x-forwarded-for x-original-forwarded-for x-real-ip"
)
"""Where a call came from: a poor sign of who calls, so it counts where there is no better one."""

_SECRET_WORDS = frozenset(
    (b"auth", b"authentication", b"authorization", b"bearer", b"cookie", b"cookie2",
     b"credential", b"credentials", b"jwt", b"password", b"secret")
)  # fmt: skip
_SECRET_ENDINGS = (b"key", b"token")
_SECRET_PARAMETERS = _names(
    "accesskey accesstoken apikey auth authorization authtoken bearertoken clientsecret idtoken "
    "jwt key oauthtoken password secret sig signature subscriptionkey token xapikey xauthtoken "
    "xgoogapikey"
)


@lru_cache(maxsize=4096)
def tells_apart(name: bytes, *, hosts: bool) -> bool:
    """Tell whether two values of a header (lower case) may mean two callers.

    ``hosts``: so may two names of the host. Addresses never do here: see ``tells_where``.
    """
    if name in _HOSTS:
        return hosts
    return not (name in _SILENT or name in _ADDRESSES or name.startswith(_SILENT_BEGINNINGS))


def tells_where(name: bytes) -> bool:
    """Tell whether a header (lower case) says from which address a call came."""
    return name in _ADDRESSES


@lru_cache(maxsize=4096)
def is_secret(name: bytes) -> bool:
    """Tell whether a header (lower case) is named like one that holds a key, token or cookie."""
    if name in _SILENT:
        return False
    words = name.replace(b"_", b"-").split(b"-")
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)


def is_secret_parameter(name: bytes) -> bool:
    """Tell whether a query parameter (percent-decoded) is named like one that holds a key."""
    return name.lower().translate(None, b"-_.$+ ") in _SECRET_PARAMETERS
