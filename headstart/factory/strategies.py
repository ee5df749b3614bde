"""Routes and their strategies from their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.factory.upstreams import provider_of
from headstart.middleware.router import Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.config import Settings
    from headstart.factory.upstreams import Opened
    from headstart.interfaces import Candidate
    from headstart.middleware.upstreams.conditions import Conditions
    from headstart.middleware.upstreams.ledger import Ledger


def make_router(
    settings: Settings, opened: Sequence[Opened], conditions: Conditions, ledger: Ledger
) -> Router:
    """Return who picks among the upstreams."""
    return Router([provider_of(each, each.candidate) for each in opened], {})


def first_that_answers(name: str, members: Sequence[Candidate]) -> Candidate:
    """Return one that asks ``members`` in order."""
    return members[0]
