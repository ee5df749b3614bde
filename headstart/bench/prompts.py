"""The prompts of a bench: the user's own, or a small mix of lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.errors import ConfigError
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


class BenchPrompt(Frozen):
    """One request's messages, in OpenAI's form."""

    messages: tuple[dict[str, Any], ...]
    max_tokens: int | None = None


class _Line(Frozen):
    prompt: str | tuple[dict[str, Any], ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    max_tokens: int | None = None


_decoder = msgspec.json.Decoder(_Line)

_HANDBOOK = " ".join(
    f"Rule {number}: a request of kind {number} is answered by the desk that holds the file, "
    "within two working days, in the language in which it came, and never twice."
    for number in range(1, 61)
)
"""Some 1,900 tokens that several prompts begin with: what a provider's prefix cache is for."""


def text_prompt(text: str, system: str | None = None, max_tokens: int | None = None) -> BenchPrompt:
    """Return one question, behind a system prompt if there is one."""
    asked: tuple[dict[str, Any], ...] = ({"role": "user", "content": text},)
    if system is not None:
        asked = ({"role": "system", "content": system}, *asked)
    return BenchPrompt(messages=asked, max_tokens=max_tokens)


MIX = (
    text_prompt("Complete in five words at most: The quick brown fox", max_tokens=16),
    text_prompt("Is the word 'level' a palindrome? Answer yes or no.", max_tokens=16),
    text_prompt("Summarise in two sentences why the sky is blue.", max_tokens=120),
    text_prompt("Write a polite reply to a customer whose parcel is late.", max_tokens=200),
    text_prompt("Explain to a beginner, step by step, how a bicycle gear works.", max_tokens=400),
    text_prompt("Which desk answers a request of kind 12?", _HANDBOOK, 60),
    text_prompt("How long may a request of kind 31 take?", _HANDBOOK, 60),
    text_prompt("In which language is a request of kind 45 answered?", _HANDBOOK, 60),
)
"""Short and long answers, short and long prompts, and a prefix that is shared."""


def read_prompts(name: str, lines: Iterable[bytes]) -> tuple[BenchPrompt, ...]:
    """Read prompts, one a line: text, or in a ``.jsonl`` file objects.

    An object has ``prompt``, a text or a list of messages, or ``messages``, and may have
    ``max_tokens``; other fields are ignored. Raises ConfigError for what cannot be read, and where
    there is no prompt.
    """
    rows = []
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            rows.append(
                _from_json(raw) if name.endswith(".jsonl") else text_prompt(raw.decode().strip())
            )
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(f"{name}, line {number}: {error}") from error
    if not rows:
        raise ConfigError(f"{name} has no prompt")
    return tuple(rows)


def _from_json(raw: bytes) -> BenchPrompt:
    line = _decoder.decode(raw)
    asked = line.messages or line.prompt
    if not asked:
        raise ValueError("give 'prompt' or 'messages'")
    if isinstance(asked, str):
        return text_prompt(asked, max_tokens=line.max_tokens)
    return BenchPrompt(messages=asked, max_tokens=line.max_tokens)
