"""Prompts of ``benchmarks.safe_hits``, each encoded and parsed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headstart.decisions import Encoding
from headstart.embeddings.encoder import OnnxEncoder
from headstart.embeddings.sketch import load_sketcher
from headstart.lab.stream import PreparedPrompt
from headstart.policies.guards.table import parse_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headstart.policies.guards.words import Parse


class Prompts:
    """Encodes and parses; ``folder`` keeps the encodings for the next time."""

    def __init__(self, folder: Path | None, *, sketches: bool = True) -> None:
        self._file = folder / "safe_hits.npz" if folder else None
        self._encoder = OnnxEncoder()
        self._sketcher = load_sketcher() if sketches else None
        self._prepared: dict[tuple[str, str], PreparedPrompt[Parse]] = {}
        self._encodings: dict[str, Encoding] = {}
        self._new = False
        if self._file and self._file.exists():
            self._encodings = dict(_read(self._file))

    def prepare(self, text: str, task: str = "") -> PreparedPrompt[Parse]:
        """Return a prompt's vector and parse. ``task`` is that of its key."""
        place = text, task
        if place not in self._prepared:
            encoding = self.encoding(text)
            parse = parse_prompt(text, encoding, task)
            sketch = None if self._sketcher is None else self._sketcher.sketch(text)
            self._prepared[place] = PreparedPrompt(
                encoding.sentence, parse, encoding.complete, sketch
            )
        return self._prepared[place]

    def encoding(self, text: str) -> Encoding:
        """Return the encoding of a prompt."""
        if text not in self._encodings:
            self._encodings[text] = self._encoder.encode(text)
            self._new = True
        kept = self._encodings[text]
        return Encoding(
            sentence=kept.sentence,
            tokens=kept.tokens.astype(np.float32),
            spans=tuple((first, last) for first, last in kept.spans),
            complete=kept.complete,
        )

    def keep(self) -> None:
        """Write the encodings, if there is a folder and anything new."""
        if self._file is None or not self._new:
            return
        encodings = list(self._encodings.values())
        self._file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            self._file,
            texts=np.array(list(self._encodings)),
            lengths=np.array([len(encoding.spans) for encoding in encodings]),
            sentences=np.array([encoding.sentence for encoding in encodings]),
            tokens=np.concatenate([encoding.tokens for encoding in encodings]).astype(np.float16),
            spans=np.concatenate(
                [np.array(encoding.spans, np.int64).reshape(-1, 2) for encoding in encodings]
            ),
            complete=np.array([encoding.complete for encoding in encodings]),
        )


def _read(file: Path) -> Iterator[tuple[str, Encoding]]:
    with np.load(file) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    ends = np.cumsum(kept["lengths"]).tolist()
    first = 0
    for place, (text, last) in enumerate(zip(kept["texts"].tolist(), ends, strict=True)):
        yield (
            text,
            Encoding(
                sentence=kept["sentences"][place],
                tokens=kept["tokens"][first:last],
                spans=kept["spans"][first:last],
                complete=bool(kept["complete"][place]),
            ),
        )
        first = last
