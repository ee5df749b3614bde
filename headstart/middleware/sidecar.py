"""The sidecar: the gateway around the admin app, dispatched on the exact raw path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.middleware.asgi import not_found
from headstart.middleware.exchange import raw_path

if TYPE_CHECKING:
    from headstart.middleware.asgi_types import ASGIApp, Receive, Scope, Send

ADMIN_PREFIX = b"/_headstart/"


def behind_gateway(admin: ASGIApp) -> ASGIApp:
    """Return the app behind the sidecar's gateway: the admin app on its prefix, else 404.

    Litestar rewrites paths (adds slashes, decodes ``%2F``), so it only ever sees its own.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or raw_path(scope).startswith(ADMIN_PREFIX):
            await admin(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    return app
