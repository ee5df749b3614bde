"""Token counts without a network: exact for models of o200k and cl100k, estimates for others.

``count_prompt`` counts a whole prompt, from the JSON of a request in any dialect.
"""

from __future__ import annotations

import gzip
from binascii import a2b_base64
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.attempts import CHARS_PER_TOKEN
from headstart.types import words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tiktoken import Encoding


MEDIA_TOKENS = 1500
"""Tokens of an image or a file, whose size is not read: an image of a million pixels."""
PIECE = 500_000
"""Most characters that are counted at once. The tokenizer panics on a million spaces in a row. A
cut between two pieces changes the count by a token or two."""
FRAME_TOKENS = 4
"""Tokens around a message."""
_MESSAGES = frozenset(("messages", "contents"))
_AS_JSON = frozenset(("tools", "input", "args", "response"))
"""Fields whose values the model sees as JSON."""
_MEDIA = frozenset(("source", "inlineData", "inline_data", "fileData", "file_data"))
_URLS = frozenset(("image_url", "url", "file_data"))
_UNSEEN = words_of("""
    model role type id tool_use_id signature thoughtSignature thinking cache_control metadata
    toolConfig tool_choice generationConfig safetySettings output_config service_tier betas
    call_id status encrypted_content previous_response_id prompt_cache_key
""")
"""Fields that the model does not see, or that cost next to nothing."""


LONGEST_COUNTED = 4_000_000
"""Most characters that are counted exactly, which takes 2 s at worst."""


def count_prompt(document: Mapping[str, Any], model: str) -> int:
    """Estimate the tokens of a request's prompt as ``model`` counts them.

    Texts are counted exactly if the model's tokenizer is installed (``count_tokens``). Images,
    files and the tokens around the texts are estimates.
    """
    texts: list[str] = []
    if isinstance(items := document.get("input"), list):  # a conversation of Responses
        document = {**document, "input": "", "messages": items}
    others = sum(_collect(document, texts))
    return others + count_tokens("\n".join(texts), model).tokens


def _collect(value: Any, texts: list[str]) -> Iterator[int]:
    """Add the texts in a JSON value to ``texts``, and yield the tokens of the other parts."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list):
        for each in value:
            yield from _collect(each, texts)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name in _MEDIA and isinstance(inner, dict):
                yield from _media(inner, texts)
            elif name in _URLS and isinstance(inner, str) and inner.startswith("data:"):
                yield MEDIA_TOKENS
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


RANKS = Path(__file__).with_name("ranks")

_CASED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SPLIT = {
    "o200k_base": "|".join((
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CASED,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CASED,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}  # fmt: skip
"""The patterns of tiktoken. Its own constructors would download the ranks, which this package
already has."""

_encodings: dict[str, Encoding] = {}


class TokenCount(NamedTuple):
    """A number of tokens. ``estimated``: the model's tokenizer was not available."""

    tokens: int
    estimated: bool


def count_tokens(text: str, model: str) -> TokenCount:
    """Count the tokens of ``text`` as ``model`` would. Never downloads, never raises.

    The first count for a model loads its encoding, unless ``load`` did. A long text takes 0.2 ms
    for a thousand tokens.
    """
    name = _encoding_name(model)
    if name is None or len(text) > LONGEST_COUNTED:
        return estimate_tokens(text, model)
    encoding = _loaded(name)
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    tokens = sum(len(encoding.encode_ordinary(piece)) for piece in pieces)
    return TokenCount(tokens, estimated=False)


def estimate_tokens(text: str, model: str) -> TokenCount:  # noqa: ARG001 - in place of count_tokens
    """Estimate the tokens of ``text`` for any model."""
    return TokenCount(-(-len(text) // CHARS_PER_TOKEN), estimated=True)


def is_loaded(model: str) -> bool:
    """Tell whether a count for ``model`` needs to load nothing."""
    name = _encoding_name(model)
    return name is None or name in _encodings


def load(model: str) -> None:
    """Load the encoding of ``model``. It may be called on any thread.

    It takes 80 MB of memory and 0.2 s of CPU time; for half of this time no other thread runs.
    """
    name = _encoding_name(model)
    if name is not None:
        _loaded(name)


@lru_cache(maxsize=256)
def _encoding_name(model: str) -> str | None:
    try:
        # Imported when the first prompt is counted.
        from tiktoken.model import encoding_name_for_model

        name = encoding_name_for_model(model)
    except KeyError:
        return None
    return name if name in _SPLIT else None


def _loaded(name: str) -> Encoding:
    return _encodings.get(name) or _encodings.setdefault(name, _read(name))


def _read(name: str) -> Encoding:
    fields = gzip.decompress((RANKS / f"{name}.tiktoken.gz").read_bytes()).split()
    ranks = dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    from tiktoken import Encoding

    return Encoding(name, pat_str=_SPLIT[name], mergeable_ranks=ranks, special_tokens={})
