"""Strategies in code, as they are in ``headstart.toml``: ``race("a", hedge("b", "c"))``.

```python
settings = Settings(
    upstream=(UpstreamSettings(preset="groq"), UpstreamSettings(preset="together"), ...),
    route=(route("chat", race("groq", hedge("together", "fireworks")), model="llama-*"),),
)
app = headstart.gateway(settings)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.config.routes import (
    JudgeInCode,
    RouteMatch,
    RouteSettings,
    StrategyName,
    StrategySettings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.interfaces import DraftJudge

    Member = str | StrategySettings
    """The name of an upstream, or a strategy in its own right."""


def fallback(*members: Member, **options: Any) -> StrategySettings:
    """Ask the next member where one fails. ``options`` are the settings of a route's strategy."""
    return _composed("fallback", members, options)


def race(*members: Member, **options: Any) -> StrategySettings:
    """Ask all members at once; the first content wins and the others are cancelled."""
    return _composed("race", members, options)


def hedge(*members: Member, **options: Any) -> StrategySettings:
    """Ask the next member too where the first is slower than it usually is, within a budget."""
    return _composed("hedge", members, options)


def fastest(*members: Member, **options: Any) -> StrategySettings:
    """Ask the member that is expected to be done first."""
    return _composed("fastest", members, options)


def cheapest(*members: Member, **options: Any) -> StrategySettings:
    """Ask the cheapest member, with ``within_s`` of those that are expected to be done by then."""
    return _composed("cheapest", members, options)


def cascade(
    fast: Member, slow: Member, *, judges: Sequence[DraftJudge] = (), **options: Any
) -> StrategySettings:
    """Ask ``fast`` for a draft, and ``slow`` where the judges do not let it pass.

    ``judges`` are functions of yours, beside those that the setting ``judge`` names.
    """
    own = tuple(map(JudgeInCode, judges)) or None
    return _composed("cascade", (fast, slow), {"judges": own, **options})


def route(
    name: str,
    answer: Member,
    *,
    model: str = "*",
    path: str = "*",
    header: Mapping[str, str] | None = None,
    **settings: Any,
) -> RouteSettings:
    """Return a ``[[route]]`` for requests that fit the patterns, answered by ``answer``.

    ``settings`` are its other settings, such as ``deadline_s``. Raises TypeError for unknown ones.
    """
    match = RouteMatch(model=model, path=path, header=dict(header or {}))
    if isinstance(answer, str):
        answer = StrategySettings(strategy="single", upstreams=(answer,))
    return RouteSettings(name=name, match=match, **{**msgspec.structs.asdict(answer), **settings})


def _composed(
    strategy: StrategyName, members: tuple[Member, ...], options: dict[str, Any]
) -> StrategySettings:
    return StrategySettings(strategy=strategy, upstreams=members, **options)
