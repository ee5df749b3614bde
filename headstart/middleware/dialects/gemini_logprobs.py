"""Gemini's log-probabilities of tokens, and OpenAI's, which hold the same under other names."""

from __future__ import annotations

from typing import Any


def from_gemini(result: dict[str, Any]) -> dict[str, Any]:
    """Return a ``logprobsResult`` as the ``logprobs`` of an OpenAI choice."""
    chosen = _objects(result.get("chosenCandidates"))
    top = [_objects(step.get("candidates")) for step in _objects(result.get("topCandidates"))]
    top += [[] for _ in chosen[len(top) :]]
    content = [
        {**_token(each), "top_logprobs": [_token(other) for other in others]}
        for each, others in zip(chosen, top, strict=False)
    ]
    return {"content": content, "refusal": None}


def from_openai(logprobs: dict[str, Any]) -> dict[str, Any]:
    """Return the ``logprobs`` of an OpenAI choice as a ``logprobsResult``."""
    content = _objects(logprobs.get("content"))
    return {
        "chosenCandidates": [_candidate(each) for each in content],
        "topCandidates": [
            {"candidates": [_candidate(other) for other in _objects(each.get("top_logprobs"))]}
            for each in content
        ],
    }


def _token(candidate: dict[str, Any]) -> dict[str, Any]:
    text = candidate.get("token")
    text = text if isinstance(text, str) else ""
    return {
        "token": text,
        # The API's JSON leaves out a 0.
        "logprob": candidate.get("logProbability", 0.0),
        "bytes": list(text.encode("utf-8", "surrogatepass")),
    }


def _candidate(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token.get("token", ""), "logProbability": token.get("logprob", 0.0)}


def _objects(value: Any) -> list[dict[str, Any]]:
    return (
        [each for each in value or () if isinstance(each, dict)] if isinstance(value, list) else []
    )
