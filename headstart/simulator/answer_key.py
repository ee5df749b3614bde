"""The right answers to a labelled stream: each class has its own, in words that may vary."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from headstart.errors import ConfigError
from headstart.simulator.chat_request import Message  # noqa: TC001 - msgspec reads it
from headstart.simulator.facts import draw_facts, tell
from headstart.simulator.oracle import Oracle, Truth, transcript
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.simulator.facts import Facts


_ECHOED_WORDS = 40
"""A longer question is not said again."""
_WORDINGS = 3
"""Questions of a class that its answers may say again, beside the one that was asked."""


class Scripted(Frozen):
    """One line of a stream: a prompt, the question in it, and the class of its answer."""

    prompt: str
    question: str
    label: str


class _Line(Frozen):
    prompt: str | tuple[Message, ...]
    label: str | int = msgspec.field(name="class")
    query: str | None = None


_decoder = msgspec.json.Decoder(_Line)


def read_answer_key(lines: Iterable[bytes]) -> list[Scripted]:
    """Read a stream of ``{"prompt", "class"}``, one a line, as ``headstart evaluate`` does.

    A list of messages stands under its ``transcript``; a line's ``query`` is the question in its
    prompt. Other fields are ignored. Raises ConfigError for a line that cannot be read.
    """
    rows = []
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            try:
                rows.append(_scripted(_decoder.decode(raw)))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"line {number} is no labelled prompt: {error}; give {{'prompt', 'class'}}"
                ) from error
    return rows


def _scripted(line: _Line) -> Scripted:
    if isinstance(line.prompt, str):
        prompt = question = line.prompt
    else:
        prompt = transcript(line.prompt)
        question = line.prompt[-1].text if line.prompt else ""
    return Scripted(prompt=prompt, question=line.query or question, label=str(line.label))


class AnswerKey(Oracle):
    """An Oracle of a labelled stream; other prompts are answered as any Oracle does.

    The answers of two classes never state the same facts. ``vary``: every regeneration words its
    answer anew, as a model at a temperature above zero does, and says in some words of the class
    what was asked. Raises ConfigError for a prompt with two classes.
    """

    def __init__(
        self,
        rows: Iterable[Scripted],
        *,
        vary: bool = False,
        answer_tokens: int | None = None,
    ) -> None:
        super().__init__(answer_tokens=answer_tokens)
        self._rows: dict[str, Scripted] = {}
        self._wordings: dict[str, list[str]] = {}
        for row in rows:
            if self._rows.setdefault(row.prompt, row).label != row.label:
                raise ConfigError(f"one prompt has two classes: {row.label!r} and another")
            wordings = self._wordings.setdefault(row.label, [])
            if len(wordings) < _WORDINGS:
                wordings.append(row.question)
        self._facts = _distinct_facts(sorted(self._wordings))
        self._vary = vary

    def truth_of_messages(self, messages: Sequence[Message], occasion: str = "") -> Truth:
        """Return the right answer, worded for the occasion."""
        row = self._rows.get(transcript(messages))
        if row is None:
            return super().truth_of_messages(messages, occasion)
        facts, seed = self._facts[row.label], row.label
        wordings = self._wordings[row.label][:1]
        if self._vary:
            seed = occasion
            wordings = [row.question, *self._wordings[row.label]]
        asked = random.Random(seed).choice(wordings)
        if len(asked.split()) > _ECHOED_WORDS:
            asked = ""
        return Truth(class_id=row.label, text=tell(facts, seed, asked))


def _distinct_facts(labels: Iterable[str]) -> dict[str, Facts]:
    facts: dict[str, Facts] = {}
    taken: set[Facts] = set()
    for label in labels:
        attempt = 0
        while (found := draw_facts(label, attempt)) in taken:
            attempt += 1
        taken.add(found)
        facts[label] = found
    return facts
