"""What browsers are told: a provider's answer is no page, and whose pages may read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.middleware.respond import response_start

if TYPE_CHECKING:
    from headstart.middleware.asgi_types import Message, Scope, Send
    from headstart.policies.origins import OriginRules
    from headstart.types import Headers

SANDBOX: Headers = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
"""A document that a provider sends is shown in an origin of its own, runs no script, and is what
its content type says: beside the admin API it would be the operator's own page."""
_OURS = frozenset(name for name, _ in SANDBOX)
PREFLIGHT_S = 600
"""How long a browser remembers the answer to a preflight request."""


def allowed_origin(scope: Scope, rules: OriginRules | None) -> bytes | None:
    """Return the origin of a page of another site that may read answers, if that is who asks."""
    if rules is None or not rules.origins:
        return None
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    return origins[0] if len(origins) == 1 and rules.allows(origins[0]) else None


def sandboxed(send: Send, origin: bytes | None = None) -> Send:
    """Return a ``send`` that adds ``SANDBOX``, and lets pages of ``origin`` read the answer."""
    added = SANDBOX if origin is None else (*SANDBOX, *_readable(origin))

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [
                pair
                for pair in message["headers"]
                if pair[0] not in _OURS and not (origin and pair[0].startswith(b"access-control-"))
            ]
            message = response_start(message["status"], (*kept, *added))
        await send(message)

    return sending


async def answer_preflight(scope: Scope, send: Send) -> bool:
    """Allow a page, whose origin is allowed, the request that its browser asks about (CORS).

    Return False if the request is none of this kind.
    """
    asked = dict(scope["headers"])
    method = asked.get(b"access-control-request-method")
    if scope["method"] != "OPTIONS" or method is None:
        return False
    headers = [
        (b"access-control-allow-methods", method),
        (b"access-control-max-age", b"%d" % PREFLIGHT_S),
    ]
    if names := asked.get(b"access-control-request-headers"):
        headers.append((b"access-control-allow-headers", names))
    origin = asked[b"origin"]
    await send(response_start(204, (*headers, *_readable(origin))))
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


def _readable(origin: bytes) -> Headers:
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"Origin"),
    )
