"""The review page: borderline pairs side by side, one key for same, one for different.

The page holds no data and is open to all; what it shows comes from ``/_headstart/review``, which
asks for the admin token.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from litestar import Response, get


@get("/review/page", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def review_page() -> Response[str]:
    """Return the page."""
    page = _page()
    return Response(
        page,
        media_type="text/html",
        headers={
            "content-security-policy": _policy(page),
            "cache-control": "no-cache",
            # Not no-referrer: browsers would then send "Origin: null" with each label.
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
        },
    )


@cache
def _page() -> str:
    return files("headstart.middleware.pages").joinpath("review.html").read_text(encoding="utf-8")


def _policy(page: str) -> str:
    """Allow the page's own style and script, by hash, and requests to this server; nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(page, 'style')}; script-src {_hash(page, 'script')};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _hash(page: str, element: str) -> str:
    found = re.search(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'"
