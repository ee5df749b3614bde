"""A person at a keyboard: each state of the text while a prompt is typed, with its time.

The speed is 240 characters a minute over the whole text, corrections and pauses included, as in
LiveMind (arXiv 2406.14319), whose typing is uniform. Here the times between two keys vary: they
are log-normal, longer before a word and after a sentence, and now and then the writer thinks. Some
letters are wrong at first and are deleted. After the last letter the writer reads the text once
more and presses Enter: a log-normal time with a median of 0.6 s.

These constants were set before the live drafts were tuned, and no result has changed them.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

CHARACTERS_PER_MINUTE = 240
SPREAD = 0.5
"""Standard deviation of the logarithm of a time between two keys."""
WORD_FACTOR = 1.5
SENTENCE_FACTOR = 3.0
THOUGHTS = 0.05
"""Share of the words before which the writer thinks."""
THOUGHT_FACTOR = 8.0
TYPOS = 0.02
"""Share of the letters that are wrong at first."""
MOST_WRONG = 3
"""A typo is noticed after so many letters at most."""
ENTER_MEDIAN_S = 0.6
ENTER_SPREAD = 0.4


class TypedPrompt(NamedTuple):
    """One prompt as it is typed."""

    states: tuple[tuple[float, str], ...]
    """Seconds since the first key, and the text after that key."""
    submitted_s: float
    """When Enter is pressed."""


def type_prompt(prompt: str, seed: str) -> TypedPrompt:
    """Return how a prompt is typed; the same for the same ``seed``."""
    draw = random.Random(seed)
    weights: list[tuple[float, str]] = []
    for place, letter in enumerate(prompt):
        if letter.isalpha() and draw.random() < TYPOS:
            wrong = _wrong_letters(draw, prompt, place)
            weights += [
                (_weight(draw, prompt, place), prompt[:place] + wrong[: n + 1])
                for n in range(len(wrong))
            ]
            weights += [
                (_weight(draw, prompt, place), prompt[:place] + wrong[:n])
                for n in reversed(range(len(wrong)))
            ]
        weights.append((_weight(draw, prompt, place), prompt[: place + 1]))
    whole_s = 60.0 * len(prompt) / CHARACTERS_PER_MINUTE
    unit_s = whole_s / sum(weight for weight, _ in weights)
    at, states = 0.0, []
    for weight, text in weights:
        at += weight * unit_s
        states.append((at, text))
    enter_s = ENTER_MEDIAN_S * math.exp(draw.gauss(0.0, ENTER_SPREAD))
    return TypedPrompt(tuple(states), at + enter_s)


def _wrong_letters(draw: random.Random, prompt: str, place: int) -> str:
    """Return a wrong letter and the right ones that follow it before the typo is noticed."""
    wrong = draw.choice([c for c in "abcdefghijklmnopqrstuvwxyz" if c != prompt[place].lower()])
    more = draw.randrange(MOST_WRONG)
    return wrong + prompt[place + 1 : place + 1 + more]


def _weight(draw: random.Random, prompt: str, place: int) -> float:
    """Return the time before a key, in no unit."""
    weight = math.exp(draw.gauss(0.0, SPREAD))
    before = prompt[place - 1] if place else ""
    if before.isspace():
        ends = prompt[:place].rstrip().endswith((".", "?", "!"))
        weight *= SENTENCE_FACTOR if ends else WORD_FACTOR
        if draw.random() < THOUGHTS:
            weight *= THOUGHT_FACTOR
    return weight
