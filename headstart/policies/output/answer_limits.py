"""Short answers: limits, the words that ask for them, and whether these save tokens. Pure.

Limits are learned by route and model. Savings are measured by model, in an experiment with a
holdout.

**Requests for short answers.** A constant text at the end of the system text asks for them, so that
the provider's prompt cache still works. The first user message decides whether a conversation gets
this text. So the text never appears or disappears in the middle of a conversation.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.canonical_request import CanonicalRequest, Message, ReasoningOptions, TextPart
from headstart.observe import HELD_OUT
from headstart.policies.routing.measures import Quantiles, SavedHistogram
from headstart.types import Finished, Latest, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.settings import MaxOutput


MOST_CONTINUATIONS = 2
_NEARLY = 0.9
"""The least share of our limit that an answer has which the limit has cut. It is below 1 because
providers count differently."""
_FIELDS = ("prediction", "web_search_options", "modalities", "audio")
"""Request fields whose answer is more than text, or that providers refuse together with a limit."""
_LOOKED_AT = 2000
"""Number of characters at the end of an answer that are searched for repetitions."""
_LOOPING = 0.12
"""A text that deflate shrinks below this share repeats itself. Prose keeps half of its size, a
table a quarter."""
_LOOPING_SHARE = 0.25
"""Share of the limit that an answer which repeats itself gets for its end."""
_CONTEXT = re.compile(rb"context[ _](?:length|window)", re.IGNORECASE)
_LIMIT_REFUSED = re.compile(
    rb"max_\w*tokens|maxOutputTokens|context[ _]length|context window", re.IGNORECASE
)
_TOO_LARGE = re.compile(rb"request too large for", re.IGNORECASE)


def refuse_limit(asked: CanonicalRequest) -> str | None:
    """Return the reason why an answer must not be limited, or None.

    The client's own limit is not changed. Only plain text can be continued, so arguments of tools,
    JSON and several choices get no limit.
    """
    if asked.max_tokens is not None:
        return "client-limit"
    if asked.choices != 1 or asked.logprobs:
        return "choices"
    if asked.tools:
        return "tools"
    if not asked.wants_text:
        return "format"
    if not asked.messages or asked.messages[-1].role != "user":
        return "no-question"
    return next((name for name in _FIELDS if asked.extra.get(name)), None)


def cut_by(limit: int, finish: Finished | None, tokens: int | None) -> bool:
    """Tell whether our limit ended an answer. ``tokens`` is its length, where it was reported.

    The model or the size of its context may have ended the answer before.
    """
    if finish is None or finish.reason != "length" or "context" in (finish.native or ""):
        return False
    return tokens is None or tokens >= _NEARLY * limit


def next_limit(continuation: int, limit: int, last: int | None, text: str) -> int | None:
    """Return the limit of a continuation of ``text``; the first is number 1. None: no limit.

    The last continuation gets far more (``last``, as ``Lengths.last_limit`` returns it), since a
    long answer has to end well. An answer that repeats itself gets few more tokens: limits are
    there to stop it.
    """
    if not text:
        return None
    if loops(text):
        return max(1, round(_LOOPING_SHARE * limit))
    if continuation < MOST_CONTINUATIONS:
        return limit
    return None if last is None else max(limit, last)


def loops(text: str) -> bool:
    """Tell whether a text repeats itself over and over at its end."""
    end = text[-_LOOKED_AT:].encode("utf-8", "surrogatepass")
    return len(text) >= _LOOKED_AT and len(zlib.compress(end, 6)) < _LOOPING * len(end)


def mentions_context(body: bytes) -> bool:
    """Tell whether an error answer names the context, which was too small for this very prompt."""
    return _CONTEXT.search(body) is not None


def refuses_limits(status: int, body: bytes) -> bool:
    """Tell whether an error answer objects to the limit, not to the request."""
    return status in (400, 422) and _LIMIT_REFUSED.search(body) is not None


def refuses_size(status: int, body: bytes) -> bool:
    """Tell whether an error answer objects to the limit itself, or because a rate limit counts it.

    Some providers refuse a call whose prompt and limit together exceed the tokens of a minute.
    """
    return refuses_limits(status, body) or _TOO_LARGE.search(body) is not None


FORMAT = 1
ENOUGH = 500
"""The fewest answers from which a limit is computed: five of them exceed the p99."""
GUARD_SHARE, GUARD_FACTOR = 0.99, 1.5
"""The limit ``guard`` is this multiple of the length that this share of the answers keeps to."""
TIGHT_SHARE = 0.95
"""The limit ``tight`` is the length that this share of the answers does not exceed."""
LAST_FACTOR = 8
"""The last continuation of an answer ends at this multiple of the p99."""
LEAST_LAST = 16_384
"""The lowest limit of a last continuation. A route may have a long answer among thousands of short
ones, or its answers may become long; such answers are learned only if they can end."""
LEAST_LIMIT = 64
"""The lowest limit. A shorter one saves nothing."""
_HALF_LIFE = 5000.0
"""Number of answers after which an old one counts half."""
_TOKENS = 1e-3
"""Scale of tokens: ``Quantiles`` reaches from 0.001 to 600, here from one token to 600,000."""
_MOST_KEYS = 256


class LengthKey(NamedTuple):
    """The answers of one model on one route."""

    route: str
    model: str


class _SavedLengths(msgspec.Struct, array_like=True):
    key: LengthKey
    seen: int
    bins: SavedHistogram


class _LengthsSnapshot(msgspec.Struct):
    format: int
    lengths: list[_SavedLengths]


@dataclass(slots=True, eq=False)
class _LearnedLengths:
    lengths: Quantiles = field(default_factory=lambda: Quantiles(_HALF_LIFE))
    seen: int = 0
    refused: bool = False


class Lengths:
    """Lengths of answers in tokens, reasoning included. Keys that are long unused are forgotten."""

    def __init__(self) -> None:
        self._learned: Latest[LengthKey, _LearnedLengths] = Latest(_MOST_KEYS)

    def add(self, key: LengthKey, tokens: int) -> None:
        """Learn the length of an answer that came to its own end; no limit cut it."""
        learned = self._of(key)
        learned.seen += 1
        learned.lengths.add(tokens * _TOKENS, learned.seen)

    def refuse(self, key: LengthKey) -> None:
        """Give these answers no limit until the next start: an upstream refused one."""
        self._of(key).refused = True

    def limit(self, key: LengthKey, budget: MaxOutput) -> int | None:
        """Return the limit of an answer; None: no limit, or too few answers are known."""
        learned = self._learned.get(key)
        if learned is not None and learned.refused:
            return None
        if isinstance(budget, int):
            return budget
        if budget == "off" or learned is None or learned.seen < ENOUGH:
            return None
        share, factor = (TIGHT_SHARE, 1.0) if budget == "tight" else (GUARD_SHARE, GUARD_FACTOR)
        length = learned.lengths.quantile(share) or 0.0
        return max(LEAST_LIMIT, math.ceil(factor * length / _TOKENS))

    def last_limit(self, key: LengthKey) -> int | None:
        """Return the limit for a last continuation; None: too few answers are known."""
        learned = self._learned.get(key)
        if learned is None or learned.seen < ENOUGH:
            return None
        length = learned.lengths.quantile(GUARD_SHARE) or 0.0
        return max(LEAST_LAST, math.ceil(LAST_FACTOR * length / _TOKENS))

    def saved(self) -> bytes:
        """Return a snapshot of the lengths."""
        rows = [
            _SavedLengths(key, each.seen, each.lengths.saved(each.seen))
            for key, each in self._learned.items()
            if each.seen
        ]
        return msgspec.msgpack.encode(_LengthsSnapshot(FORMAT, rows))

    def load(self, data: bytes) -> bool:
        """Restore a snapshot; return False if it has another version."""
        try:
            snapshot = msgspec.msgpack.decode(data, type=_LengthsSnapshot)
            learned = {each.key: _restored(each) for each in snapshot.lengths}
        except (msgspec.DecodeError, ValueError):  # saved by a version with another layout
            return False
        if snapshot.format != FORMAT:
            return False
        self._learned.update(learned)
        return True

    def _of(self, key: LengthKey) -> _LearnedLengths:
        learned = self._learned[key] = self._learned.get(key) or _LearnedLengths()
        return learned


def _restored(saved: _SavedLengths) -> _LearnedLengths:
    learned = _LearnedLengths()
    learned.seen = saved.seen
    learned.lengths.load(saved.bins, saved.seen)
    return learned


# --- requests for short answers -------------------------------------------------------------------

LEVELS = (
    "Answer directly.",
    "Answer directly, in as few sentences as a complete answer needs.",
    "Answer in at most three short sentences, or in a short list.",
)
"""The words by level, from level 1 on."""
_ALWAYS = (
    " No preamble, no repetition, no closing remarks. Leave out nothing that was asked for, and "
    "keep the language, the form and the length that were asked for."
)
EXAMPLES = """

Answers of the right length:
Question: Why is the sky blue?
Answer: Air scatters blue light more than red, so blue reaches us from all over the sky.
Question: Which ports does FTP use?
Answer: 21 for commands; 20 for data in active mode, a negotiated one in passive mode."""

_AGAINST = {
    "code": words_of("""
        code coding function functions script scripts program regex regexp sql query queries html
        css bash shell command commands python javascript typescript java rust golang compile
        compiler debug debugging traceback exception refactor test tests api class classes algorithm
        implement snippet syntax dockerfile makefile git diff patch
    """),
    "format": words_of("""
        json yaml xml csv schema table tables markdown format formatted template field fields key
        keys
    """),
    "reasoning": words_of("""
        reason reasoning think prove proof derive solve calculate compute equation equations
        integral derivative probability math maths mathematical percent percentage analyse analyze
        analysis compare evaluate puzzle riddle many much far long
    """),
    "length": words_of("""
        detail details detailed comprehensive thorough thoroughly depth elaborate length complete
        full entire every all list essay article story poem letter email emails mail report blog
        speech chapter draft write rewrite rephrase paraphrase translate translation summarise
        summarize summary edit proofread verbatim transcribe transcript words sentences paragraph
        paragraphs page pages short shorter shortly brief briefly concise concisely longer
    """),
}
"""Words of a question that speak against a short answer, by the reason."""
_ENGLISH_WORDS = words_of("""
    the is are was what how why who where when which does do can could should my your of for with
    this that tell explain
""")
_WORD = re.compile(r"[a-z]+")
_STEPS = re.compile(r"step[ -]by[ -]step|\d\D.*?\d", re.DOTALL)
"""A text with two numbers may ask for a sum."""
_THINKING_MODEL = re.compile(
    r"(?:^|[/.-])(?:o[134]|r1|qwq)(?:[-:.]|$)|gpt-5|reason|think", re.IGNORECASE
)
_EDGE = 2000
"""Number of characters that are read at the beginning and at the end of a message, where the
question stands."""
_UNTHINKING = ("none", "minimal")


def refuse_concise(asked: CanonicalRequest) -> str | None:
    """Return the reason why the model must not be asked for a short answer, or None.

    Brevity harms tool calls, structured answers, code and reasoning. If the caller mentions the
    length, the caller decides about it. Texts that may not be English are left alone, and so are
    unclear cases.
    """
    if asked.tools:
        return "tools"
    if not asked.wants_text:
        return "format"
    if _thinks(asked.reasoning) or _THINKING_MODEL.search(asked.model):
        return "reasoning"
    if asked.extra.get("prediction") or not asked.messages or asked.messages[-1].role != "user":
        return "no-question"
    return _refuse_opening(asked.messages)


def _refuse_opening(messages: Sequence[Message]) -> str | None:
    """Judge a conversation by its first user message and the messages above it.

    Later messages do not count: another system text would cost the provider's whole cache.
    """
    first = next(place for place, each in enumerate(messages) if each.role == "user")
    *above, question = [(each.role, _text(each)) for each in messages[: first + 1]]
    if any("```" in text for _, text in (*above, question)):
        return "code"
    if any(_words(text) & _AGAINST["format"] for role, text in above if role != "assistant"):
        return "format"
    edges, words = _edges(question[1]), _words(question[1])
    if not edges.isascii() or words.isdisjoint(_ENGLISH_WORDS):
        return "language"
    for reason, against in _AGAINST.items():
        if words & against:
            return reason
    return "reasoning" if _STEPS.search(edges) else None


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _edges(text: str) -> str:
    edges = text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
    return edges.lower()


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_edges(text)))


def _thinks(wish: ReasoningOptions | None) -> bool:
    return wish is not None and wish.enabled is not False and wish.effort not in _UNTHINKING


def directive(level: int, *, examples: bool) -> str:
    """Return the words that ask for a short answer. ``level`` is 1 to 3."""
    return LEVELS[level - 1] + _ALWAYS + (EXAMPLES if examples else "")


def concise_transform(level: int) -> str:
    """Return the name of the transform for answers that were asked for at this level."""
    return f"concise:{level}"


def refuses_concise(transforms: Iterable[str], level: int) -> bool:
    """Tell whether an answer with these transforms must not serve a route of this level (0: off).

    An answer of ordinary length serves every route.
    """
    for each in transforms:
        if each.startswith("concise:") and each != concise_transform(level):
            return True
    return False


# --- whether a way of asking saves tokens ---------------------------------------------------------

_RANGE = 2**64


def held_out(experiment: str, conversation: str, share: float) -> bool:
    """Tell whether a conversation is in the holdout, which has ``share`` of all conversations.

    Its digest decides, so all turns of a conversation and all replicas get the same result.
    """
    digest = blake2b(f"{experiment}\0{conversation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * _RANGE


def experiment_arm(experiment: str, conversation: str, share: float) -> str:
    """Return the arm of a conversation: the name of the experiment, or of its holdout."""
    return experiment + HELD_OUT if held_out(experiment, conversation, share) else experiment


ENOUGH_PAIRS = 5
"""Fewest answers for a judgement."""
MEMORY = 0.9
"""Factor by which older answers lose weight when the next one comes."""
MOST_OF = 0.9
"""It pays to ask in this way if the tokens fall to this share or less."""
TRIES = 20
"""One in this number of calls is asked in this way even if it does not pay, because models
change."""
MOST_MODELS = 1000


class SavingsByModel:
    """Tokens with and without a way of asking, by model. The latest answers count most."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelSavings] = {}

    def pays(self, model: str) -> bool:
        """Tell whether to ask in this way. Unknown models are tried."""
        savings = self._models.get(model)
        return savings is None or savings.pays()

    def add(self, model: str, before: int, after: int) -> None:
        """Learn that an answer of ``before`` tokens cost ``after`` tokens."""
        savings = self._models.get(model)
        if savings is None:
            if len(self._models) >= MOST_MODELS:
                return
            savings = self._models[model] = _ModelSavings()
        savings.add(before, after)


class _ModelSavings:
    def __init__(self) -> None:
        self._count = 0
        self._before = 0.0
        self._after = 0.0
        self._let_be = 0

    def pays(self) -> bool:
        if self._count < ENOUGH_PAIRS or self._after <= MOST_OF * self._before:
            return True
        self._let_be += 1
        return self._let_be % TRIES == 0

    def add(self, before: int, after: int) -> None:
        self._count += 1
        self._before = MEMORY * self._before + before
        self._after = MEMORY * self._after + after
