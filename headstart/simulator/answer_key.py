"""The right answers to a labelled stream: each class has its own, in words that may vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.errors import ConfigError
from headstart.simulator.chat_request import Message  # noqa: TC001 - msgspec reads it
from headstart.simulator.facts import draw_facts, tell
from headstart.simulator.oracle import Oracle, Truth, transcript
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headstart.simulator.facts import Facts


class _Line(Frozen):
    prompt: str | tuple[Message, ...]
    label: str | int = msgspec.field(name="class")


_decoder = msgspec.json.Decoder(_Line)


def read_answer_key(lines: Iterable[bytes]) -> dict[str, str]:
    """Read a stream of ``{"prompt", "class"}``, one a line; return the class of each prompt.

    A list of messages stands under its ``transcript``. Other fields are ignored. Raises
    ConfigError for a line that cannot be read and for a prompt with two classes.
    """
    classes: dict[str, str] = {}
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            line = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"line {number} is no labelled prompt: {error}; give {{'prompt', 'class'}}"
            ) from error
        prompt = line.prompt if isinstance(line.prompt, str) else transcript(line.prompt)
        label = str(line.label)
        if classes.setdefault(prompt, label) != label:
            raise ConfigError(f"line {number}: this prompt has another class further up")
    return classes


class AnswerKey(Oracle):
    """An Oracle of a labelled stream; other prompts are answered as any Oracle does.

    The answers of two classes never state the same facts. ``vary``: every regeneration words its
    answer anew, as a model at a temperature above zero does.
    """

    def __init__(
        self,
        classes: Mapping[str, str],
        *,
        vary: bool = False,
        answer_tokens: int | None = None,
    ) -> None:
        super().__init__(answer_tokens=answer_tokens)
        self._classes = dict(classes)
        self._facts = _distinct_facts(sorted(set(self._classes.values())))
        self._vary = vary

    def truth_of_messages(self, messages: Sequence[Message], occasion: str = "") -> Truth:
        """Return the right answer, worded for the occasion."""
        label = self._classes.get(transcript(messages))
        if label is None:
            return super().truth_of_messages(messages, occasion)
        seed = f"{label}#{occasion}" if self._vary else label
        return Truth(class_id=label, text=tell(self._facts[label], seed))


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
