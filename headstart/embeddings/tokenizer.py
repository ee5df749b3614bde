"""The tokenizer of an encoder folder, which the encoder and the sketcher share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from headstart.embeddings.model_card import TOKENIZER_FILE
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.embeddings.model_card import ModelCard

CHARS_PER_TOKEN = 10
"""The characters to keep for each token of the limit. English has about 4.7 a token, and each
character costs 0.4 µs in the tokenizer."""


def token_limit(card: ModelCard, wanted: int | None) -> int:
    """Return how many tokens of a text are read. Raises ConfigError."""
    if wanted is None:
        return card.max_tokens
    if not 0 < wanted <= card.max_tokens:
        raise ConfigError(
            f"encoder.max_tokens is {wanted}: {card.name} takes from 1 to {card.max_tokens}"
        )
    return wanted


@functools.lru_cache(maxsize=2)
def load_tokenizer(folder: Path, limit: int) -> Tokenizer:
    """Return the tokenizer of a folder, which cuts texts at ``limit`` tokens.

    It is loaded once and thread-safe; nobody may change it. Raises ConfigError.
    """
    path = folder / TOKENIZER_FILE
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigError(f"encoder.model: {path} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    return tokenizer
