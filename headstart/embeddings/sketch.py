"""Sketches: vectors of texts from a static table of token vectors, without the model.

A sketch imitates the encoder: two texts with similar encodings have similar sketches. It costs one
tokenisation and a sum, about a fiftieth of an encoding. It knows words, but not their order.
``docs/encoder.md`` says how near it comes. ``sketch_table.py`` makes the table.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headstart.embeddings.encoder import CHARS_PER_TOKEN, load_tokenizer, token_limit
from headstart.embeddings.model_card import DEFAULT_MODEL, read_card, sha256_file
from headstart.errors import ConfigError
from headstart.types import Frozen

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from headstart.embeddings.model_card import ModelCard

FORMAT = 1
TABLE_FILE = "sketch.npy"
CARD_FILE = "sketch.json"


def row_type(dimension: int) -> np.dtype[Any]:
    """Return the type of the table's rows: one row for each token id."""
    return np.dtype([("scale", "<f4"), ("row", "i1", (dimension,))])


class SketchCard(Frozen):
    """The description of a table, in ``sketch.json``. Two comparable sketches share all of it."""

    format: int
    dimension: int
    encoder: str
    """The namespace of the encoder that the table imitates."""
    texts: int
    """The number of texts that the table was trained on."""
    texts_sha256: str
    table_sha256: str

    @property
    def namespace(self) -> str:
        """The name of what comparable sketches share: two namespaces are never compared."""
        return f"{self.encoder}|sketch-{self.table_sha256[:16]}"


class Sketcher:
    """Sketches texts with one table. Thread-safe; a question costs 33 µs, a long text 1.5 ms."""

    def __init__(
        self,
        card: SketchCard,
        table: NDArray[Any],
        tokenizer: Tokenizer,
        encoder: ModelCard,
        limit: int,
    ) -> None:
        self._card = card
        # A memmap would make an object of its own class at each access.
        self._rows: NDArray[np.int8] = np.asarray(table["row"])
        self._scales: NDArray[np.float32] = np.asarray(table["scale"])
        self._tokenizer = tokenizer
        self._most_chars = limit * CHARS_PER_TOKEN
        added = len(tokenizer.encode(encoder.prefix).ids)
        self._most_tokens = limit - added
        unknown = encoder.unknown_token
        self._unknown = None if unknown is None else tokenizer.token_to_id(unknown)

    @property
    def namespace(self) -> str:
        """The encoder's namespace and the version of the table."""
        return self._card.namespace

    @property
    def dimension(self) -> int:
        """The length of a sketch."""
        return self._card.dimension

    def sketch(self, text: str) -> NDArray[np.float32]:
        """Return the sketch of a text: a read-only vector of length 1.

        The end of a text is left out beyond the encoder's limit. A text without any known token has
        the zero vector.
        """
        return self._add(self._tokenize(text))

    def sketch_whole(self, text: str) -> NDArray[np.float32] | None:
        """Return the sketch of a prompt, or None if the encoder cannot encode it as a whole.

        This is a prompt that is too long, or that has a word outside the vocabulary. It may not
        match by meaning, so nobody needs its sketch.
        """
        ids = self._tokenize(text)
        if len(text) > self._most_chars or len(ids) > self._most_tokens or self._unknown in ids:
            return None
        return self._add(ids)

    def _tokenize(self, text: str) -> list[int]:
        kept = text[: self._most_chars]
        return self._tokenizer.encode(kept, add_special_tokens=False).ids

    def _add(self, ids: list[int]) -> NDArray[np.float32]:
        at = np.array(ids, dtype=np.intp)
        # No product of matrices: its threads would spin for so little work.
        total: NDArray[np.float32] = np.add.reduce(self._rows[at] * self._scales[at, None])
        length = math.sqrt(np.add.reduce(total * total))
        if length > 0:
            total /= length
        total.setflags(write=False)
        return total


def load_sketcher(folder: Path | None = None, *, max_tokens: int | None = None) -> Sketcher | None:
    """Return the sketcher of an encoder folder, by default of the encoder in the package.

    None if the folder has no table. ``max_tokens`` is the encoder's. Raises ConfigError if the
    table is not whole, or belongs to another encoder.
    """
    folder = folder or DEFAULT_MODEL
    path = folder / CARD_FILE
    try:
        card = msgspec.json.decode(path.read_bytes(), type=SketchCard)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"encoder.model: {path} cannot be read: {error}") from error
    encoder = read_card(folder)
    table = _read_table(folder, card, encoder)
    limit = token_limit(encoder, max_tokens)
    tokenizer = load_tokenizer(folder, limit)
    if len(table) < tokenizer.get_vocab_size():
        raise ConfigError(f"encoder.model: {folder / TABLE_FILE} does not fit the tokenizer")
    return Sketcher(card, table, tokenizer, encoder, limit)


@functools.lru_cache(maxsize=2)
def _read_table(folder: Path, card: SketchCard, encoder: ModelCard) -> NDArray[Any]:
    """Map the table into memory, once in a process: processes share its pages."""
    path = folder / TABLE_FILE
    if card.format != FORMAT or card.encoder != encoder.namespace:
        raise ConfigError(
            f"encoder.model: {folder / CARD_FILE} is of another version or of another encoder; "
            "export the encoder again"
        )
    try:
        if sha256_file(path) != card.table_sha256:
            raise ConfigError(
                f"encoder.model: {path} is not the file that its card describes; export it again"
            )
        table: NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ConfigError(f"encoder.model: {path} cannot be read: {error}") from error
    if table.dtype != row_type(card.dimension):
        raise ConfigError(f"encoder.model: {path} does not have {card.dimension} dimensions")
    return table
