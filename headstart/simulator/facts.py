"""Made-up facts that set one class's answer apart, told in other words at each telling."""

from __future__ import annotations

import random
import re
from hashlib import sha256
from pathlib import Path

import msgspec

from headstart.types import Frozen

_SLOT = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\]]*)\]")
_OWN = (1, 1, 2, 3)
"""Facts in which a class differs from the others of its family: often a single one."""

_REMARKS = 3
"""Sentences that state nothing, known of a class; each telling leaves one of them out."""

_ECHO = 0.6
"""Share of answers that begin with what was asked; the others end with it."""


class Form(Frozen, forbid_unknown_fields=True):
    """What answers of one kind state: each statement in several wordings."""

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
    """What the right answer of a class says: the place of a form in ``FORMS``, its values."""

    form: int
    values: tuple[tuple[str, str], ...]
    remarks: tuple[int, ...]
    """Places of the sentences that go with it and state nothing."""


def draw_facts(class_id: str, attempt: int = 0) -> Facts:
    """Return a class's facts: a pure function of its name.

    Classes ``family/…`` share form and facts with their family but for one to three facts of their
    own: near-duplicates, as the answers to questions that differ in one name are. Draw again with
    another ``attempt`` when the facts are another class's already.
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


def tell(facts: Facts, seed: str, asked: str = "") -> str:
    """Word the facts; another seed tells the same in other words and another order.

    What was ``asked`` is said again at the beginning or the end.
    """
    rng = _seeded(seed)
    told = [rng.choice(wordings) for wordings in FORMS[facts.form].statements]
    told += [_FILE.remarks[place] for place in rng.sample(facts.remarks, _REMARKS - 1)]
    rng.shuffle(told)
    openings, closings = _FILE.openings, _FILE.closings
    if asked and rng.random() < _ECHO:
        openings = _FILE.echoes
    elif asked:
        closings = _FILE.summaries
    sentences = (rng.choice(openings), *told, rng.choice(closings))
    values = {**dict(facts.values), "asked": asked.strip(" .?!")}
    return " ".join(_fill(sentence, values, rng) for sentence in sentences if sentence)


def _fill(sentence: str, values: dict[str, str], rng: random.Random) -> str:
    chosen = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), sentence)
    text = _SLOT.sub(lambda match: values[match[1]], chosen)
    return text[0].upper() + text[1:]


def _draw(rng: random.Random, name: str, but: str | None = None) -> str:
    """Return a value of the slot's kind: its name without the number at its end."""
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
