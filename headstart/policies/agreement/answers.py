"""The parts of an answer that are judged: text, tool calls, refusal, and a cut at the limit.

Reasoning, ids, token counts and log-probabilities are no part of the content of an answer.
"""

from __future__ import annotations

import re

import msgspec

from headstart.types import Choice, Completion, Frozen, RawResponse, Refusal, Text, ToolCall

_TRUNCATED = frozenset({"length", "max_tokens", "model_length"})
_WITHHELD = frozenset({"content_filter", "refusal", "safety"})
_VOLATILE = frozenset(
    {"id", "request_id", "trace_id", "created", "created_at", "timestamp", "usage", "latency_ms"}
)
"""Top-level fields of a custom endpoint's JSON that differ from answer to answer."""

_PLAIN_REFUSALS = re.compile(
    r"""
      \b(?:i|we)(?:\s+am|'m|\s+are|'re)\s+(?:\w+\s+){0,2}
          (?:unable|not\s+able|not\s+sure|not\s+certain|not\s+aware|not\s+familiar)\b
    | \b(?:i|we)\s+(?:\w+\s+)?(?:cannot|can't|can\s+not|won't|couldn't|could\s+not)\s+
          (?:\w+\s+)?(?:help\s+(?:you|with)|assist|answer|provide|find|determine|comply|discuss
          |access|share|do)\b
    | \b(?:i|we)\s+(?:\w+\s+)?(?:don't|do\s+not)\s+(?:\w+\s+)?
          (?:know|have|understand|possess)\b
    | \b(?:i|we)\s+didn't\s+find\b
    | \bas\s+an\s+ai\b
    | ^\W*(?:n/a|unknown|unsure|no\s+answer|not\s+enough\s+information)\W*$
    """,
    re.VERBOSE | re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"""
      \b(?:however|that\s+said|nevertheless|here\s+(?:is|are))\b
    | (?<!sorry,\s)(?<!sorry\s)(?<!apologize,\s)\bbut\b(?!\s+(?:you|please|i)\b)
    """,
    re.VERBOSE | re.IGNORECASE,
)
REFUSAL_CHARS = 400
"""A longer text says more than that it will not answer."""
_FIRST_CHARS = 160


class ReadChoice(Frozen):
    """One choice of an answer."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    refuses: bool = False
    """It refuses, does not know, or says nothing at all."""
    truncated: bool = False


def read_answer(answer: Completion | RawResponse) -> tuple[ReadChoice, ...] | None:
    """Return the choices of an answer in order; None for bytes that are no text."""
    if isinstance(answer, Completion):
        return tuple(map(_read_choice, sorted(answer.choices, key=lambda choice: choice.index)))
    try:
        text = answer.body.decode()
    except UnicodeDecodeError:
        return None
    text = _without_volatile(text)
    return (ReadChoice(text=text, refuses=refuses(text)),)


def answer_text(answer: Completion | RawResponse) -> str:
    """Return the text and the calls of an answer, choice by choice, for a reader."""
    return "\n\n".join(
        "\n".join([reply.text, *(f"{call.name}({call.arguments})" for call in reply.calls)]).strip()
        for reply in read_answer(answer) or ()
    )


def refuses(text: str) -> bool:
    """Tell "I don't know", "I can't help with that" and silence from an answer; English only.

    A text that begins so and then answers after all does not refuse.
    """
    if not text:
        return True
    if len(text) > REFUSAL_CHARS:
        return False
    plain = text.replace("\u2019", "'")
    return bool(_PLAIN_REFUSALS.search(plain[:_FIRST_CHARS])) and not _GOES_ON.search(plain)


def _read_choice(choice: Choice) -> ReadChoice:
    calls = tuple(part for part in choice.parts if isinstance(part, ToolCall))
    text = "".join(part.text for part in choice.parts if isinstance(part, Text)).strip()
    refused = any(isinstance(part, Refusal) and part.text for part in choice.parts)
    return ReadChoice(
        text=text,
        calls=calls,
        refuses=refused or choice.finish in _WITHHELD or (not calls and refuses(text)),
        truncated=choice.finish in _TRUNCATED,
    )


def _without_volatile(text: str) -> str:
    try:
        document = msgspec.json.decode(text)
        if isinstance(document, dict) and document.keys() & _VOLATILE:
            kept = {name: value for name, value in document.items() if name not in _VOLATILE}
            return msgspec.json.encode(kept).decode()
    except (msgspec.DecodeError, RecursionError):
        pass
    return text.strip()
