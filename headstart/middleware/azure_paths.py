"""The paths of Azure OpenAI, as its clients send them. They may name the model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import msgspec

from headstart.middleware.endpoints import raw_path

if TYPE_CHECKING:
    from headstart.middleware.asgi_types import Scope

DEPLOYMENT = "headstart.deployment"
"""The key of the scope with the model that the path named, an empty text if it named none."""
_PATH = re.compile(rb"/openai/(?:deployments/([^/]+)/|v1/)?(?=.)")


class _ModelOfBody(msgspec.Struct):
    model: object = None


def as_openai(scope: Scope) -> Scope | None:
    """Return the scope of a request to one of Azure's paths, with OpenAI's path in its place.

    None: the path is not Azure's. The scope tells the model that the path named, under
    ``DEPLOYMENT``. The query loses ``api-version``, which each upstream has of its own, and calls
    the ``deployment`` of a WebSocket its ``model``.
    """
    path = raw_path(scope)
    found = _PATH.match(path)
    if found is None:
        return None
    own = b"/v1/" + path[found.end() :]
    pairs = scope["query_string"].split(b"&")
    kept = [
        pair.replace(b"deployment=", b"model=", 1) if pair.startswith(b"deployment=") else pair
        for pair in pairs
        if not pair.startswith(b"api-version=")
    ]
    return {
        **scope,
        "root_path": "",
        "path": unquote_to_bytes(own).decode("utf-8", "replace"),
        "raw_path": own,
        "query_string": b"&".join(kept),
        DEPLOYMENT: unquote_to_bytes(found[1] or b"").decode("utf-8", "replace"),
    }


def with_deployment(body: bytes, name: str) -> bytes:
    """Return the body with the deployment for its model, as Azure reads it.

    A body that is no JSON object stays as it is.
    """
    try:
        if msgspec.json.decode(body, type=_ModelOfBody).model == name:
            return body
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    return msgspec.json.encode({**fields, "model": name})
