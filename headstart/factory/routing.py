"""Route rules and lives of answers from their settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.policies.freshness import Lifetimes, QuestionClass
from headstart.policies.terms import REPEAT_WINDOW_S, RouteRule

if TYPE_CHECKING:
    from headstart.config import CacheSettings, RouteSettings


def route_rule(route: RouteSettings) -> RouteRule:
    """Return what a ``[[route]]`` sets; its patterns were checked with the settings."""
    return RouteRule(
        route.name,
        model=route.match.model,
        path=route.match.path,
        headers=tuple((name.lower().encode(), glob) for name, glob in route.match.header.items()),
        max_error=route.max_error,
        query=None if route.query is None else re.compile(route.query),
        semantic=route.semantic,
        ttl_s=route.ttl_s,
        repeat_window_s=None
        if route.on_repeat == "hit"
        else route.repeat_window_s or REPEAT_WINDOW_S,
    )


def lifetimes(cache: CacheSettings) -> Lifetimes:
    """Return how long answers live, by the class of their question."""
    ages = cache.ttl_by_class
    return Lifetimes(
        ttl_s=cache.ttl_s,
        by_class={QuestionClass.LIVE: ages.live, QuestionClass.DATED: ages.dated},
    )
