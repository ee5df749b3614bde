"""Where a provider is, what it speaks and how long to wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headstart.canonical_request import Quirks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.types import Headers

AFTER_END_S = 1.0
"""How long a provider may take to end the body of an answer that is whole. A body that ends in time
leaves its connection to the next call."""


@dataclass(frozen=True)
class HTTPOptions:
    """One provider. Times are in seconds.

    ``base_url`` stands for the provider's root and the version in a request's path: without a
    path of its own it keeps the request's (``https://api.anthropic.com``); with one it takes the
    place of the leading ``/v1``, ``/v1beta`` or ``/v2`` (``https://api.groq.com/openai/v1``,
    ``https://generativelanguage.googleapis.com/v1beta``).
    """

    name: str
    base_url: str
    dialect: str = ""
    """Name of the wire format that it speaks; "": whatever a call speaks."""
    quirks: Quirks = field(default_factory=Quirks)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Added to every body."""
    credential: Headers | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    defaults: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers for calls that have none of that name."""
    models: Mapping[str, str] = field(default_factory=dict)
    include_usage: bool = True
    connect_s: float = 10.0
    first_token_s: float = 120.0
    read_s: float = 120.0
    warm: bool = False
    """Connect anew, by a HEAD request to ``base_url``, where a cancelled call took a connection."""
    proxy: str | None = None
    ca_file: str | None = None
