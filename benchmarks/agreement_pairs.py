"""Pairs of equal and of different answers, made of questions whose answers people judged.

The data are EVOUNA's NQ.json (wangcunxiang/QA-Eval, Apache-2.0): questions, their right answers,
and the answers of four models. Kinds of pairs:

- same: two models' right answers to one question;
- reworded: right answers to two questions of similarity 0.8 or more that share a right answer;
- near, far: a right answer to a question, and a right answer to one of the two most similar
  questions. The similarity is at least 0.7 (near) or lower (far); ``answered`` if the cached answer
  also answers the fresh question;
- exchanged: a right answer, and an answer of the same or of another model in which the right words
  were replaced by those of a similar question;
- upstream: a right and a wrong answer to one question (an error of the model, not of the cache).
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headstart.policies.agreement.judge import question_words, read_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MODELS = ("gpt35", "chatgpt", "gpt4", "newbing")
NEAR = 0.7
REWORDED = 0.8
NEIGHBOURS = 60
"""The number of nearest questions. One of them gives the wrong words of an exchange."""
SEED = 4


class Question(NamedTuple):
    text: str
    right: tuple[str, ...]
    answers: dict[str, str]
    """The answers that people judged right, by model."""
    wrong: dict[str, str]


class Pair(NamedTuple):
    kind: str
    place: int
    fresh: str
    cached: str
    questions: tuple[str, str]

    @property
    def positive(self) -> bool:
        return self.kind in {"same", "reworded"}


def read_questions(path: Path) -> list[Question]:
    """Return the questions that people judged; answers without a word are left out."""
    rows = json.loads(path.read_text("utf-8"))
    return [
        Question(
            row["question"],
            tuple(right.strip() for right in (row["golden_answer"] or "").split("/")),
            {name: answer for name, answer, verdict in judged(row) if verdict},
            {name: answer for name, answer, verdict in judged(row) if verdict is False},
        )
        for row in rows
        if not row["improper"]
    ]


def judged(row: dict[str, Any]) -> Iterable[tuple[str, str, bool | None]]:
    for name in MODELS:
        answer = (row[f"answer_{name}"] or "").strip()
        if re.search(r"\w", answer):
            yield name, answer, row[f"judge_{name}"]


def build_pairs(
    questions: Sequence[Question], encode: Callable[[str], NDArray[np.float32]]
) -> list[Pair]:
    dice = random.Random(SEED)
    vectors = np.stack([encode(question.text) for question in questions])
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -1)
    pairs = []
    for place in range(len(questions)):
        by_likeness = np.argsort(-likeness[place])[:NEIGHBOURS].tolist()
        pairs += same_question(questions, place)
        for other in by_likeness[:2]:
            pairs += other_question(
                questions, place, other, float(likeness[place, other]), dice=dice
            )
        pairs += exchanged(questions, place, by_likeness, dice)
    return pairs


def same_question(questions: Sequence[Question], place: int) -> list[Pair]:
    question = questions[place]
    asked = (question.text, question.text)
    names = list(question.answers)
    return [
        Pair("same", place, question.answers[one], question.answers[two], asked)
        for rank, one in enumerate(names)
        for two in names[rank + 1 :]
    ] + [
        Pair("upstream", place, right, wrong, asked)
        for right in question.answers.values()
        for wrong in question.wrong.values()
    ]


def other_question(
    questions: Sequence[Question], place: int, other: int, similarity: float, *, dice: random.Random
) -> list[Pair]:
    """Pair each right answer with the neighbour's by the same model, and by one other model."""
    question, neighbour = questions[place], questions[other]
    same_right = plain(question.right) & plain(neighbour.right)
    if same_right and similarity < REWORDED:
        return []
    pairs = []
    for name, fresh in question.answers.items():
        others = [model for model in neighbour.answers if model != name]
        models = ([name] if name in neighbour.answers else []) + (
            [dice.choice(others)] if others else []
        )
        for cached in (neighbour.answers[model] for model in models):
            kind = "near" if similarity >= NEAR else "far"
            if same_right:
                kind = "reworded"
            elif holds_right(question, cached):
                kind = f"{kind}, answered"
            pairs.append(Pair(kind, place, fresh, cached, (question.text, neighbour.text)))
    return pairs


def exchanged(
    questions: Sequence[Question], place: int, near: Sequence[int], dice: random.Random
) -> list[Pair]:
    """Exchange the right answer inside each answer for one of another, similar question."""
    question = questions[place]
    asked = (question.text, question.text)
    pairs = []
    for name, answer in question.answers.items():
        found = [right for right in question.right if right and whole(right).search(answer)]
        if not found:
            continue
        right = max(found, key=len)
        candidates = [
            foreign
            for other in near
            for foreign in questions[other].right
            if foreign
            and has_digit(foreign) == has_digit(right)
            and not words(foreign) & words(right)
        ]
        if not candidates:
            continue
        foreign = dice.choice(candidates)
        changed = foreign.join(whole(right).split(answer))
        if any(whole(rest).search(changed) for rest in question.right if rest and rest != foreign):
            continue
        pairs.append(Pair("exchanged", place, answer, changed, asked))
        others = [text for model, text in question.answers.items() if model != name]
        if others:
            pairs.append(Pair("exchanged by another", place, dice.choice(others), changed, asked))
    return pairs


def holds_right(question: Question, cached: str) -> bool:
    """Tell that an answer to another question also answers this one."""
    given, content = question_words(question.text), read_words(cached).content
    rights = (read_words(right).content - given for right in question.right)
    return any(right and right <= content for right in rights)


def plain(rights: Iterable[str]) -> set[str]:
    return {" ".join(re.findall(r"\w+", right.lower())) for right in rights} - {""}


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", re.IGNORECASE)


def has_digit(text: str) -> bool:
    return any(char.isdecimal() for char in text)
