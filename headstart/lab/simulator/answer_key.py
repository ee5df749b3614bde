"""The right answers to a labelled stream: made-up facts of each class, in varying words."""

from __future__ import annotations

import random
import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headstart.errors import ConfigError
from headstart.lab.simulator.chat_request import AskedMessage  # noqa: TC001 - msgspec reads it
from headstart.lab.simulator.oracle import Oracle, Truth, transcript
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SLOT = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\]]*)\]")
_OWN = (1, 1, 2, 3)
"""The number of facts in which a class differs from its family; often a single one."""

_REMARKS = 3
"""The number of sentences of a class that state no fact; each wording leaves out one."""

_ECHO = 0.6
"""The share of answers that begin with the question; the others end with it."""


class Form(Frozen, forbid_unknown_fields=True):
    """The statements of one kind of answers, each in several wordings."""

    statements: tuple[tuple[str, ...], ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """The facts' names, sorted."""
        return tuple(sorted({name for each in self.statements for name in _SLOT.findall(each[0])}))


class _AnswersFile(Frozen, forbid_unknown_fields=True):
    openings: tuple[str, ...]
    echoes: tuple[str, ...]
    summaries: tuple[str, ...]
    closings: tuple[str, ...]
    remarks: tuple[str, ...]
    numbers: dict[str, tuple[int, int]]
    values: dict[str, tuple[str, ...]]
    form: tuple[Form, ...]


_FILE = msgspec.toml.decode(
    Path(__file__).with_name("answers.toml").read_bytes(), type=_AnswersFile
)
FORMS = _FILE.form


class Facts(Frozen):
    """The right answer of a class: the place of its form in ``FORMS``, and its values."""

    form: int
    values: tuple[tuple[str, str], ...]
    remarks: tuple[int, ...]
    """The places of its sentences that state no fact."""


def draw_facts(class_id: str, attempt: int = 0) -> Facts:
    """Return a class's facts, which depend on its name alone.

    The classes ``family/…`` have the form and the facts of their family, except for one to three
    facts of their own. So their answers are near-duplicates, like the answers to questions that
    differ in one name. Another ``attempt`` gives other facts, for the case that a class has these
    facts already.
    """
    family, own = class_id.rpartition("/")[0], _seeded(f"{class_id}#{attempt}")
    shared = _seeded(family) if family else own
    form = shared.randrange(len(FORMS))
    values = {name: _draw(shared, name) for name in FORMS[form].slots}
    remarks = shared.sample(range(len(_FILE.remarks)), _REMARKS)
    if family:
        for name in own.sample(sorted(values), own.choice(_OWN)):
            values[name] = _draw(own, name, but=values[name])
    return Facts(form=form, values=tuple(values.items()), remarks=tuple(remarks))


def write_answer(facts: Facts, seed: str, asked: str = "") -> str:
    """Return the facts in words. Another seed gives other words in another order.

    The question ``asked`` is repeated at the beginning or the end.
    """
    rng = _seeded(seed)
    statements = [rng.choice(wordings) for wordings in FORMS[facts.form].statements]
    statements += [_FILE.remarks[place] for place in rng.sample(facts.remarks, _REMARKS - 1)]
    rng.shuffle(statements)
    openings, closings = _FILE.openings, _FILE.closings
    if asked and rng.random() < _ECHO:
        openings = _FILE.echoes
    elif asked:
        closings = _FILE.summaries
    sentences = (rng.choice(openings), *statements, rng.choice(closings))
    values = {**dict(facts.values), "asked": asked.strip(" .?!")}
    return " ".join(_fill(sentence, values, rng) for sentence in sentences if sentence)


def _fill(sentence: str, values: dict[str, str], rng: random.Random) -> str:
    chosen = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), sentence)
    text = _SLOT.sub(lambda match: values[match[1]], chosen)
    return text[0].upper() + text[1:]


def _draw(rng: random.Random, name: str, but: str | None = None) -> str:
    """Return a value of the slot's kind, which is its name without the number at its end."""
    kind = name.rstrip("0123456789")
    while True:
        if kind in _FILE.numbers:
            value = str(rng.randint(*_FILE.numbers[kind]))
        else:
            value = rng.choice(_FILE.values[kind])
        if value != but:
            return value


def _seeded(source: str) -> random.Random:
    return random.Random(sha256(source.encode("utf-8", "surrogatepass")).digest())


_ECHOED_WORDS = 40
"""An answer does not repeat a longer question."""
_WORDINGS = 3
"""The number of questions of a class that its answers may repeat, beside the asked one."""


class Scripted(Frozen):
    """One line of a stream: a prompt, the question in it, and the class of its answer."""

    prompt: str
    question: str
    label: str


class _KeyLine(Frozen):
    prompt: str | tuple[AskedMessage, ...]
    label: str | int = msgspec.field(name="class")
    query: str | None = None


_decoder = msgspec.json.Decoder(_KeyLine)


def read_answer_key(lines: Iterable[bytes]) -> list[Scripted]:
    """Read a stream of lines ``{"prompt", "class"}``, as ``headstart evaluate`` does.

    A list of messages is stored under its ``transcript``. The ``query`` of a line is the question
    in its prompt. Other fields are ignored. Raises ConfigError for a line that cannot be read.
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


def _scripted(line: _KeyLine) -> Scripted:
    if isinstance(line.prompt, str):
        prompt = question = line.prompt
    else:
        prompt = transcript(line.prompt)
        question = line.prompt[-1].text if line.prompt else ""
    return Scripted(prompt=prompt, question=line.query or question, label=str(line.label))


class AnswerKey(Oracle):
    """An Oracle of a labelled stream. Other prompts get the answers of a plain Oracle.

    Two classes never have the same facts. With ``vary`` every answer has new words, like the
    answers of a model at a temperature above zero, and repeats the question in some words of its
    class. Raises ConfigError for a prompt with two classes.
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

    def truth_of_messages(self, messages: Sequence[AskedMessage], occasion: str = "") -> Truth:
        """Return the right answer, in words that depend on the occasion."""
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
        return Truth(class_id=row.label, text=write_answer(facts, seed, asked))


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
