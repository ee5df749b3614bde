"""The card of an encoder folder: ``model.json``, beside ``model.onnx`` and ``tokenizer.json``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from headstart.errors import ConfigError
from headstart.types import Frozen

FORMAT = 1
DEFAULT_MODEL = Path(__file__).with_name("model")
"""The folder of the encoder in this package."""
GRAPH_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"
CARD_FILE = "model.json"

Pooling: TypeAlias = Literal["mean", "cls"]
Precision: TypeAlias = Literal["int8", "high", "fp32"]


class ModelCard(Frozen):
    """The description of an encoder. Two comparable vectors share all of it.

    The graph takes ``input_ids`` i64[1, n]. It gives ``sentence`` f32[1, dimension], of length 1,
    and ``tokens`` f32[1, n, dimension]. ``max_tokens`` includes prefix and special tokens.
    """

    format: int
    name: str
    dimension: int
    max_tokens: int
    pooling: Pooling
    prefix: str
    precision: Precision
    unknown_token: str | None
    source: str
    weights_sha256: str
    onnx_sha256: str

    @property
    def namespace(self) -> str:
        """The name of what comparable vectors share: two namespaces are never compared."""
        return "|".join(
            (self.name, self.pooling, self.prefix, self.precision, self.onnx_sha256[:16])
        )


def read_card(folder: Path) -> ModelCard:
    """Return the card of an encoder folder. Raises ConfigError if it is missing or not valid."""
    path = folder / CARD_FILE
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except OSError as error:
        raise ConfigError(
            f"encoder.model: no readable {CARD_FILE} in {folder}; "
            "make the folder with: headstart encoder export"
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"encoder.model: {path} is not an encoder card: {error}") from error
    if card.format != FORMAT:
        raise ConfigError(
            f"encoder.model: {path} has format {card.format}, this version reads {FORMAT}; "
            "export the model again"
        )
    return card


def write_card(folder: Path, card: ModelCard) -> None:
    """Write the card as indented JSON with a final newline."""
    text = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (folder / CARD_FILE).write_bytes(text + b"\n")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
