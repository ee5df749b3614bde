"""Gemini: how much its models shall think. Generations differ in how they are told.

Sources: Google's guides to thinking and to thought signatures of the Gemini API.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headstart.middleware.dialects.request_parts import effort_of

if TYPE_CHECKING:
    from headstart.canonical_request import ReasoningWish
    from headstart.middleware.dialects.request_parts import Losses

_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
"""Google's own table for the efforts of its OpenAI endpoint."""
_LEAST_OF_PRO = 128
_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}
_LEVELS.update((level, level) for level in ("minimal", "low", "medium", "high"))
ANY_SIGNATURE = "skip_thought_signature_validator"
"""What Google has calls say that another model made."""


def wants_signatures(model: str) -> bool:
    """Does the model refuse calls of its own turns that come back without their signatures?"""
    return _version(model) >= (3, 0)


def thinking_config(wish: ReasoningWish, model: str, losses: Losses) -> dict[str, Any] | None:
    """Return ``thinkingConfig`` for a wish, or None where there is nothing to say."""
    version = _version(model)
    effort = "none" if wish.enabled is False else wish.effort
    if version < (2, 5):
        if effort != "none":
            losses.drop("reasoning_effort")
        return None
    config: dict[str, Any] = dict(losses.carried(wish.extra))
    shown = wish.shown
    if shown is None and (wish.enabled or wish.budget_tokens is not None) and not losses.own:
        shown = True
    if shown is not None:
        config["includeThoughts"] = shown
    if version >= (3, 0):
        if effort is None and wish.budget_tokens is not None:
            effort = effort_of(wish.budget_tokens)
        if effort is not None and effort in _LEVELS:
            config["thinkingLevel"] = _LEVELS[effort]
        elif effort is not None:
            losses.drop("reasoning_effort")
        return config or None
    budget = wish.budget_tokens
    if budget is None and effort is not None:
        budget = _BUDGETS.get(effort, _BUDGETS["high"])
    if budget is None and wish.enabled:
        budget = -1  # as much as the model sees fit
    if budget is not None:
        config["thinkingBudget"] = _LEAST_OF_PRO if budget == 0 and "pro" in model else budget
    return config or None


def _version(model: str) -> tuple[int, int]:
    """Return a model's generation; one without a number is taken for the latest."""
    match = _VERSION.match(model)
    if match is None:
        return (2, 5) if model.startswith("gemini") else (0, 0)
    return int(match[1]), int(match[2] or 0)
