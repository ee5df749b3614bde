"""An encoder that loads its model when the first prompt is encoded, not at the start."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headstart.embeddings.model_card import DEFAULT_MODEL, read_card
from headstart.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.decisions import Encoding
    from headstart.embeddings.encoder import OnnxEncoder


class LazyEncoder:
    """The encoder in ``path``. Raises ConfigError if its card cannot be read. Thread-safe."""

    def __init__(self, path: Path | None = None, *, max_tokens: int | None = None) -> None:
        self._path = path
        self._max_tokens = max_tokens
        self._card = read_card(path or DEFAULT_MODEL)
        self._loading = threading.Lock()
        self._encoder: OnnxEncoder | None = None

    @property
    def namespace(self) -> str:
        """That of the encoder."""
        return self._card.namespace

    @property
    def dimension(self) -> int:
        """That of the encoder."""
        return self._card.dimension

    def encode(self, text: str) -> Encoding:
        """Encode one prompt. Raises EncoderError, also if the model cannot be loaded."""
        encoder = self._encoder
        return (self._load() if encoder is None else encoder).encode(text)

    def _load(self) -> OnnxEncoder:
        from headstart.embeddings.encoder import OnnxEncoder

        with self._loading:
            if self._encoder is None:
                try:
                    self._encoder = OnnxEncoder(self._path, max_tokens=self._max_tokens)
                except ConfigError as error:
                    raise EncoderError(str(error)) from error
            return self._encoder
