"""Scripted traffic whose truth is known: repeats, rewordings and traps in seeded order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from headstart.simulator.oracle import TOPICS, Oracle, Topic
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["new", "repeat", "reword", "trap"]

_TASKS = (
    "Write a limerick about {}",
    "Suggest a name for a shop that sells {}",
    "What should a beginner know about {}?",
    "Draft a short advertisement for {}",
    "List three surprising facts about {}",
    "Which museum has the best collection of {}?",
    "How were {} made two hundred years ago?",
    "Explain to a child what {} are for",
    "What are common faults of {} and their causes?",
    "Compose a polite complaint about a delivery of {}",
)
_THINGS = (
    "accordions",
    "anchors",
    "baskets",
    "bicycles",
    "bookcases",
    "bridges",
    "candles",
    "carpets",
    "clocks",
    "compasses",
    "drums",
    "fans",
    "fishing nets",
    "fountains",
    "gloves",
    "greenhouses",
    "hammocks",
    "harps",
    "hats",
    "kettles",
    "kites",
    "ladders",
    "lanterns",
    "lighthouses",
    "locks",
    "maps",
    "mirrors",
    "mosaics",
    "needles",
    "oars",
    "ovens",
    "paper lamps",
    "pendulums",
    "pianos",
    "pottery wheels",
    "quilts",
    "rain coats",
    "sails",
    "saws",
    "sledges",
    "snow shoes",
    "spoons",
    "stamps",
    "steam engines",
    "telescopes",
    "tents",
    "thimbles",
    "toy trains",
    "tuning forks",
    "umbrellas",
    "vases",
    "violins",
    "wallpapers",
    "watermills",
    "weather vanes",
    "wheelbarrows",
    "whistles",
    "windows",
    "windmills",
    "zips",
)


class Prompt(Frozen):
    """One prompt of the stream, its class, and why it is there.

    ``repeat``: these very words came before; ``reword``: their meaning did, in other words;
    ``trap``: close in words to a topic that came before, with another right answer; ``new``:
    neither meaning nor words came before.
    """

    text: str
    class_id: str
    kind: Kind


def traffic(
    seed: int,
    n: int,
    repeat_share: float,
    reword_share: float,
    trap_share: float,
) -> Iterator[Prompt]:
    """Yield ``n`` prompts: a pure function of its arguments.

    The shares are targets. A kind that is used up (the catalogue has some 240 rewordings and 75
    traps) or that is not possible yet turns into a new prompt, and when those end into a repeat.
    Popularity is skewed: what came early comes back most.
    """
    script = _Script(random.Random(seed))
    kinds: tuple[Kind, ...] = ("repeat", "reword", "trap", "new")
    rest = max(0.0, 1 - repeat_share - reword_share - trap_share)
    for _ in range(n):
        wanted = script.rng.choices(kinds, (repeat_share, reword_share, trap_share, rest))[0]
        yield script.next(wanted)


class _Script:
    """What is still to be said and what has been."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._oracle = Oracle()
        self._topics = list(TOPICS)
        self._others = [task.format(thing) for task in _TASKS for thing in _THINGS]
        rng.shuffle(self._topics)
        rng.shuffle(self._others)
        self._rewordings: list[str] = []
        self._traps: list[str] = []
        self._said: list[str] = []

    def next(self, wanted: Kind) -> Prompt:
        match wanted:
            case "repeat" if self._said:
                return self._repeat()
            case "reword" if self._rewordings:
                return self._say(self._draw(self._rewordings), "reword")
            case "trap" if self._traps:
                return self._say(self._draw(self._traps), "trap")
        if self._topics:
            return self._say(self._open(self._topics.pop()), "new")
        if self._others:
            return self._say(self._others.pop(), "new")
        return self._repeat()

    def _open(self, topic: Topic) -> str:
        wordings = self.rng.sample(topic.wordings, k=len(topic.wordings))
        self._rewordings += wordings[1:]
        self._traps += [trap.text for trap in topic.traps]
        return wordings[0]

    def _draw(self, texts: list[str]) -> str:
        return texts.pop(self.rng.randrange(len(texts)))

    def _repeat(self) -> Prompt:
        place = int(len(self._said) * self.rng.random() ** 2)
        text = self._said[place]
        return Prompt(text=text, class_id=self._oracle.truth(text).class_id, kind="repeat")

    def _say(self, text: str, kind: Kind) -> Prompt:
        self._said.append(text)
        return Prompt(text=text, class_id=self._oracle.truth(text).class_id, kind=kind)
