"""The truth about scripted traffic: which prompts mean the same and what the right answer is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from headstart.simulator.prose import paragraph, reference
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.simulator.chat_request import Message

TrapKind = Literal["negation", "number", "entity", "date", "role", "unit", "antonym"]


class Trap(Frozen, forbid_unknown_fields=True):
    """A prompt close to a topic's in words whose right answer is another one."""

    text: str
    kind: TrapKind
    answer: str
    """First sentence of the right answer; filler follows."""


class Topic(Frozen, forbid_unknown_fields=True):
    """Prompts that mean the same, their answer, and the traps beside them."""

    id: str
    answer: str
    wordings: tuple[str, ...]
    traps: tuple[Trap, ...] = ()
    refusal: bool = False
    """The provider refuses: the answer travels in the ``refusal`` field."""


class Truth(Frozen):
    """The right answer to a prompt and the class of all prompts that share it."""

    class_id: str
    text: str
    refusal: bool = False
    known: bool = True


class _CatalogueFile(Frozen, forbid_unknown_fields=True):
    topic: tuple[Topic, ...]


TOPICS = msgspec.toml.decode(
    Path(__file__).with_name("catalogue.toml").read_bytes(), type=_CatalogueFile
).topic
"""The scripted topics of ``catalogue.toml``."""


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()


def transcript(messages: Sequence[Message]) -> str:
    """Return a conversation as one text: a question asked on its own is that text."""
    turns = [message for message in messages if message.role not in {"system", "developer"}]
    if len(turns) == 1:
        return turns[0].text
    return "\n".join(f"{turn.role}: {turn.text}" for turn in turns)


class Oracle:
    """Knows the class and the right answer of every prompt.

    Catalogued prompts share their topic's class; letter case and white space do not matter. Any
    other prompt is a class of its own, and its answer is derived from a hash of its text.
    """

    def __init__(
        self, topics: Iterable[Topic] = TOPICS, *, answer_tokens: int | None = None
    ) -> None:
        self._answer_tokens = answer_tokens
        self._truths: dict[str, Truth] = {}
        for topic in topics:
            truth = Truth(
                class_id=topic.id, text=" ".join(topic.answer.split()), refusal=topic.refusal
            )
            for wording in topic.wordings:
                self._add(wording, truth)
            for place, trap in enumerate(topic.traps, 1):
                class_id = f"{topic.id}/{trap.kind}-{place}"
                text = paragraph(class_id, trap.answer)
                self._add(trap.text, Truth(class_id=class_id, text=text))

    def _add(self, prompt: str, truth: Truth) -> None:
        if self._truths.setdefault(_fold(prompt), truth) is not truth:
            raise ValueError(f"the catalogue puts this prompt into two classes: {prompt!r}")

    def truth(self, prompt: str) -> Truth:
        """Return the right answer to a prompt that is asked on its own."""
        return self._truths.get(_fold(prompt)) or self._derive(prompt)

    def truth_of_messages(
        self,
        messages: Sequence[Message],
        occasion: str = "",  # noqa: ARG002 - for those whose words vary
    ) -> Truth:
        """Return the right answer to a conversation, in the words of the ``occasion``.

        A system prompt never changes a class. With any earlier turn the whole conversation is one
        prompt, so that the same last question in two conversations has two answers. Here every
        occasion has the same words.
        """
        return self.truth(transcript(messages))

    def judge(self, prompt: str, answer: str) -> bool:
        """Return whether ``answer`` is the right answer to ``prompt``, asked on its own."""
        return self.truth(prompt).text == answer

    def _derive(self, prompt: str) -> Truth:
        mark = reference(prompt)
        lead = f"Simulated answer {mark}."
        text = paragraph(prompt, lead, tokens=self._answer_tokens)
        return Truth(class_id=f"unknown-{mark}", text=text, known=False)
