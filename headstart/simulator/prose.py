"""Deterministic filler: paragraphs that read like answers and differ for every prompt."""

from __future__ import annotations

import random
import re
from hashlib import sha256

_OPENINGS = (
    "Here is a short overview of what usually matters.",
    "The short version is that it depends on a handful of details.",
    "There are a few ways to look at this, and most of them agree.",
    "It helps to start from the goal and work backwards.",
    "Most people settle this in a couple of steps.",
    "A good first step is to separate what is known from what is assumed.",
)
_SENTENCES = (
    "Write down the two or three facts you are sure of before you change anything.",
    "If something looks odd, check the simplest explanation first and only then the rare one.",
    "Small steps that can be undone are worth more than one large step that cannot.",
    "The usual mistake is to measure the wrong thing and then to trust the number.",
    "Keep the parts that work and replace only the part that is in the way.",
    "It is worth asking someone who did this recently, because the details change every year.",
    "When two options look equal, prefer the one that is easier to explain.",
    "A short test with real data tells you more than a long discussion without any.",
    "Give it a day and look again, since a second reading often finds what the first one missed.",
    "Costs tend to hide in the steps that nobody owns, so name an owner for each of them.",
    "Once it works, note what you did, because you will want to repeat it.",
    "The details vary between regions and versions, so treat any exact figure with care.",
    "Start with the default settings and change one of them at a time.",
    "There is rarely a need to decide everything at once.",
    "If you are short of time, do the first part today and leave the rest for later.",
    "Look at a worked example next to your own case and compare them line by line.",
    "An estimate with a range is more useful than a single confident number.",
    "What matters in the end is whether the result holds up under everyday use.",
    "Should it fail, the message it leaves behind is the best place to start reading.",
    "Friends and colleagues often know a shortcut that the manual leaves out.",
    "Plan for the common case and keep a simple way out for the rare one.",
    "Reading the original source takes longer, yet it saves you from repeating old errors.",
)
_TOKEN = re.compile(r"\s*\S+")


def split_tokens(text: str) -> tuple[str, ...]:
    """Cut a text into simulated tokens: words with the white space before them."""
    return tuple(_TOKEN.findall(text))


def paragraph(source: str, lead: str = "", *, tokens: int | None = None) -> str:
    """Return a paragraph of 40 to 200 tokens: a pure function of its arguments.

    It begins with ``lead``, of which nothing is dropped unless ``tokens`` sets an exact length.
    """
    rng = random.Random(sha256(source.encode("utf-8", "surrogatepass")).digest())
    wanted = tokens or rng.randint(40, 180)
    words = lead.split() + rng.choice(_OPENINGS).split()
    while len(words) < wanted:
        for sentence in rng.sample(_SENTENCES, k=len(_SENTENCES)):
            if len(words) >= wanted:
                break
            words += sentence.split()
    return " ".join(words[:tokens])


def reference(source: str) -> str:
    """Return eight hex digits that stand for a text, so that no two answers are alike."""
    return sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]
