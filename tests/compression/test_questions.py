"""Questions are answered from compressed text. ``benchmarks/compression_questions.py`` has more."""

from __future__ import annotations

import pytest

from benchmarks.compression_documents import KINDS
from benchmarks.compression_questions import LATER, ours, row

_LEAST_SAVED = {"log": 0.3, "page": 0.4, "json": 0.4, "notes": 0.1, "listing": 0.05, "build": 0.8}


@pytest.mark.parametrize("kind", KINDS)
def test_questions_about_a_document_can_be_answered_from_what_is_sent(kind: str) -> None:
    trials = ours(kind, 25, "balanced")
    lost = {
        (each.document.kind, each.question.words)
        for each in trials
        if not each.question.is_answered(each.sent)
    }
    found = row(trials)
    assert found["answered"] >= 0.98, lost
    assert found["wrong facts"] == 0
    assert found["tokens"] < -_LEAST_SAVED[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_no_document_tells_a_wrong_fact_to_a_question_that_comes_later(kind: str) -> None:
    assert row(ours(kind, 25, "balanced", LATER))["wrong facts"] == 0
