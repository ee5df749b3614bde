"""An estimate of the tokens of a whole prompt, from the JSON of a request in any dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.compression.tokens import count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MEDIA_TOKENS = 1500
"""Tokens of an image or a file, whose size is not read: an image of a million pixels."""
FRAME_TOKENS = 4
"""Tokens around a message."""
_MESSAGES = frozenset(("messages", "contents"))
_AS_JSON = frozenset(("tools", "input", "args", "response"))
"""Fields whose values the model sees as JSON."""
_MEDIA = frozenset(("source", "inlineData", "inline_data", "fileData", "file_data"))
_UNSEEN = frozenset(
    (
        "model", "role", "type", "id", "tool_use_id", "signature", "thoughtSignature", "thinking",
        "cache_control", "metadata", "toolConfig", "tool_choice", "generationConfig",
        "safetySettings", "output_config", "service_tier", "betas",
    )
)  # fmt: skip
"""Fields that the model does not see, or that cost next to nothing."""


def count_prompt(document: Mapping[str, Any], model: str) -> int:
    """Estimate the tokens of a request's prompt as ``model`` counts them.

    Texts are counted exactly where the model's tokenizer is here (``tokens.count_tokens``). Images,
    files and what stands around the texts are estimates.
    """
    texts: list[str] = []
    others = sum(_collect(document, texts))
    return others + count_tokens("\n".join(texts), model).tokens


def _collect(value: Any, texts: list[str]) -> Iterator[int]:
    """Add the texts in a JSON value to ``texts``, and yield the tokens of all else."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list):
        for each in value:
            yield from _collect(each, texts)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name in _MEDIA and isinstance(inner, dict):
                yield from _media(inner, texts)
            elif name in _AS_JSON and not isinstance(inner, str):
                texts.append(msgspec.json.encode(inner).decode())
            elif name not in _UNSEEN:
                if name in _MESSAGES and isinstance(inner, list):
                    yield FRAME_TOKENS * len(inner)
                yield from _collect(inner, texts)


def _media(source: Mapping[str, Any], texts: list[str]) -> Iterator[int]:
    """Count plain text; yield one number for anything else."""
    data = source.get("data")
    if source.get("type") == "text" and isinstance(data, str):
        texts.append(data)
    elif isinstance(source.get("content"), list | str):
        yield from _collect(source["content"], texts)
    else:
        yield MEDIA_TOKENS
