"""What ``checked`` asks of safe hits: error targets, audits, the judge, routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headstart.config.settings import CacheSettings, is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.config.routes import RouteSettings
    from headstart.config.settings import JudgeSettings, Settings
    from headstart.config.upstreams import UpstreamSettings

CONFIDENCES = (0.69, 0.84, 0.95)
_MOST_ERRORS = 0.5
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LEARNED = ("max_error", "error_of", "confidence", "cold_start", "shadow_first", "state")
"""Settings of verified matching alone."""


def safety_problems(settings: Settings) -> Iterator[str]:
    """Yield what contradicts itself in ``[cache]`` and ``[[route]]``, each with its fix."""
    cache = settings.cache
    yield from _match_problems(cache)
    yield from _error_problems("cache.max_error", cache.max_error)
    if cache.confidence is not None and cache.confidence not in CONFIDENCES:
        yield f"cache.confidence: {cache.confidence} is no choice; use 0.69, 0.84 or 0.95"
    if cache.audit.max_usd_per_day is not None:
        yield from _price_problems("cache.audit.max_usd_per_day", settings.upstream)
    if cache.judge is not None:
        yield from _judge_problems(cache.judge, settings.upstream)
    names: set[str] = set()
    for index, route in enumerate(settings.route):
        yield from _route_problems(f"route[{index}]", route, cache)
        if route.name in names:
            yield f"route[{index}].name: {route.name!r} is taken by another route"
        names.add(route.name)


def _match_problems(cache: CacheSettings) -> Iterator[str]:
    if cache.match == "verified" and cache.threshold is not None:
        yield (
            'cache.threshold: verified matching finds its own; set cache.match = "static", or '
            "state the share of wrong hits you accept as cache.max_error"
        )
    if cache.effective_match == "static":
        for name in _LEARNED:
            if getattr(cache, name) != getattr(_DEFAULTS, name):
                yield (
                    f"cache.{name}: static matching does not learn; leave out cache.threshold and "
                    'set cache.match = "verified"'
                )


_DEFAULTS = CacheSettings()
_NO_MEANING = ("set semantic = false for this route", 'set cache.mode = "exact-only"')


def _error_problems(setting: str, share: float | None) -> Iterator[str]:
    if share is None or 0 < share <= _MOST_ERRORS:
        return
    if share == 0:
        yield f"{setting}: 0 accepts no hit by meaning; {_NO_MEANING[setting == 'cache.max_error']}"
        return
    hint = f"for {share:g} % write {share / 100:g}" if 1 <= share <= 50 else "0.01 is 1 %"
    yield f"{setting}: {share:g} is not a share above 0 and at most {_MOST_ERRORS}; {hint}"


def _price_problems(setting: str, upstreams: Sequence[UpstreamSettings]) -> Iterator[str]:
    for index, upstream in enumerate(upstreams):
        if not upstream.price:
            yield (
                f"{setting}: what {upstream.name!r} costs is not known; set "
                f"upstream[{index}].price, or cap the calls with max_calls_per_hour"
            )


def _judge_problems(judge: JudgeSettings, upstreams: Sequence[UpstreamSettings]) -> Iterator[str]:
    chosen = [upstream for upstream in upstreams if upstream.name == judge.upstream]
    if not chosen:
        names = ", ".join(upstream.name for upstream in upstreams) or "none"
        yield f"cache.judge.upstream: no upstream is named {judge.upstream!r}; there is: {names}"
    for upstream in chosen:
        if upstream.speaks != "openai":
            yield (
                f"cache.judge.upstream: {upstream.name!r} does not speak OpenAI's dialect, in "
                "which the judge is asked; name another upstream"
            )
        host = urlsplit(upstream.base_url).hostname or ""
        if not upstream.key_variables and not is_loopback_host(host):
            yield (
                f"cache.judge.upstream: {upstream.name!r} has no key of its own, and a caller's "
                "is never spent on judging; set its api_key_env"
            )
    if judge.max_usd_per_day is not None:
        yield from _price_problems("cache.judge.max_usd_per_day", chosen)


def _route_problems(setting: str, route: RouteSettings, cache: CacheSettings) -> Iterator[str]:
    yield from _error_problems(f"{setting}.max_error", route.max_error)
    if route.max_error is not None and cache.effective_match == "static":
        yield f'{setting}.max_error: needs cache.match = "verified"'
    for name in route.match.header:
        if not _HEADER_NAME.fullmatch(name):
            yield f"{setting}.match.header: {name!r} is not the name of a header"
    if route.repeat_window_s is not None and route.on_repeat != "fresh":
        yield f'{setting}.repeat_window_s: needs on_repeat = "fresh"'
    if route.query is None:
        return
    try:
        named = "query" in re.compile(route.query).groupindex
    except re.error as error:
        yield f"{setting}.query: not a regular expression: {error}"
        return
    if not named:
        yield f"{setting}.query: name the question's group, as in '(?s).*Question: (?P<query>.+)'"
