"""When a predicted output may be sent along with a request.

The restrictions are those of OpenAI's *Predicted Outputs* guide; other providers have fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_CHARS = 200
"""A shorter answer is there before a prediction of it could pay."""
_EXCLUDED = (
    "audio",
    "function_call",
    "functions",
    "logprobs",
    "max_completion_tokens",
    "prediction",
    "tool_choice",
    "tools",
    "top_logprobs",
    "web_search_options",
)
_PENALTIES = ("frequency_penalty", "presence_penalty")


def may_predict(document: Mapping[str, Any], prediction: str) -> bool:
    """Tell whether a Chat Completions request may bear this prediction."""
    if len(prediction) < MIN_CHARS or any(document.get(name) for name in _EXCLUDED):
        return False
    if document.get("n") not in (None, 1) or document.get("modalities") not in (None, ["text"]):
        return False
    return not any(document.get(name) for name in _PENALTIES)


def with_prediction(document: Mapping[str, Any], prediction: str) -> dict[str, Any]:
    """Return the document with the prediction of its answer's text."""
    return {**document, "prediction": {"type": "content", "content": prediction}}


def predicted_tokens(usage: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return accepted and rejected tokens of a usage object, or None if it tells neither.

    Rejected tokens are billed: they are part of its completion tokens.
    """
    details = usage.get("completion_tokens_details")
    if not isinstance(details, dict):
        return None
    accepted, rejected = (
        details.get(f"{kind}_prediction_tokens") for kind in ("accepted", "rejected")
    )
    if type(accepted) is not int or type(rejected) is not int:
        return None
    return accepted, rejected
