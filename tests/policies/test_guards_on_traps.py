"""Guards on the questions of ``benchmarks/slots.toml``, whose answers depend on one word or two."""

from __future__ import annotations

import numpy as np

from benchmarks.slots import slots_stream
from headstart.embeddings.encoder import OnnxEncoder
from headstart.policies.guards.table import GUARDS, parse_prompt

SIMILAR = 0.9
NOT_TOLD_APART = {("3/fabric sofa", "3/leather sofa")}
"""The answers whose questions no guard tells apart."""


def test_similar_questions_with_other_answers_are_vetoed() -> None:
    rows, encoder = slots_stream(), OnnxEncoder()
    encodings = [encoder.encode(row.text) for row in rows]
    parses = [parse_prompt(row.text, one) for row, one in zip(rows, encodings, strict=True)]
    vectors = np.array([one.sentence for one in encodings])
    near = np.argwhere(np.triu(vectors @ vectors.T, 1) >= SIMILAR)
    traps = [(one, other) for one, other in near if rows[one].label != rows[other].label]
    passed = {
        tuple(sorted((rows[one].label, rows[other].label)))
        for one, other in traps
        if not any(vetoes(parses[one], parses[other]) for vetoes in GUARDS.values())
    }
    assert len(traps) > 2000
    assert passed == NOT_TOLD_APART
