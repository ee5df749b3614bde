"""Labelled prompts, and the rates of hits and of wrong hits that they give.

Pairs and streams are read from lines of JSON. A pair is ``{"a", "b", "same_answer"}``, and a
line of a stream is ``{"prompt", "class"}``. Both may have a ``category``. Prompts are texts or
lists of messages. The ``query`` of a stream's line is the question inside a templated prompt. Other
fields are ignored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headstart.decisions import MatchContext, Neighbor, RankedNeighbor
from headstart.errors import ConfigError
from headstart.lab.stream import HISTORY, PlayedPrompt, PreparePrompt, history_judge
from headstart.policies.key import KeyContext, Templates, chat_key, find_question
from headstart.report.estimates import ShareInterval, least_share, wilson_interval
from headstart.types import UNDECODABLE, CacheKey, ChatRequest, Frozen, T

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headstart.interfaces import MatchPolicy


P = TypeVar("P")

_CONTEXT = KeyContext(dialect="openai-chat", path=b"/v1/chat/completions", upstream="")


class LabelledDataError(ConfigError):
    """A line of a file cannot be used; the message names the line and the fix."""


class Pair(Frozen):
    """Two prompts with their cache keys, and whether one answer is right for both."""

    a: CacheKey
    b: CacheKey
    same_answer: bool
    category: str | None = None


class LabelledPrompt(Frozen):
    """One prompt of a stream. Prompts of the same class have the same answer."""

    prompt: CacheKey
    label: str
    category: str | None = None


def same_class(fresh: LabelledPrompt, cached: LabelledPrompt) -> bool:
    """Return whether two prompts have the same label."""
    return fresh.label == cached.label


class Pairs(Frozen):
    """The pairs of a file."""

    rows: tuple[Pair, ...]


class Stream(Frozen):
    """The prompts of a file with their classes, in the order in which they are asked."""

    rows: tuple[LabelledPrompt, ...]


class _PairLine(msgspec.Struct):
    a: str | list[dict[str, Any]]
    b: str | list[dict[str, Any]]
    same_answer: bool
    category: str | None = None


class _StreamLine(msgspec.Struct):
    prompt: str | list[dict[str, Any]]
    label: str | int = msgspec.field(name="class")
    query: str | None = None
    category: str | None = None


def read_labelled(lines: Iterable[bytes], *, or_else: str = "") -> Pairs | Stream:
    """Read a file of pairs or of a stream. The first line decides which of the two it is.

    ``or_else`` tells in an error what else the caller reads. Raises LabelledDataError.
    """
    rows = numbered(lines)
    fields = decode_line(*rows[0], dict[str, Any])
    if {"prompt", "class"} <= fields.keys():
        templates = Templates()
        return Stream(rows=tuple(_labelled(number, line, templates) for number, line in rows))
    if "a" in fields:
        return Pairs(rows=tuple(_pair(decode_line(*row, _PairLine)) for row in rows))
    raise LabelledDataError(
        f"line {rows[0][0]}: found {sorted(fields)}; a pair needs a, b and same_answer, "
        f"a stream line needs prompt and class{or_else}"
    )


def numbered(lines: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, with their numbers. Raises LabelledDataError."""
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise LabelledDataError(
            "the file is empty: give JSON lines, or a CSV whose first line names its columns"
        )
    return rows


def decode_line(number: int, line: bytes, kind: type[T]) -> T:
    """Decode one line. Raises LabelledDataError."""
    try:
        return msgspec.json.decode(line, type=kind)
    except UNDECODABLE as error:
        raise LabelledDataError(f"line {number}: {error}") from error


def _pair(line: _PairLine) -> Pair:
    return Pair(
        a=_prompt(line.a), b=_prompt(line.b), same_answer=line.same_answer, category=line.category
    )


def _labelled(number: int, raw: bytes, templates: Templates) -> LabelledPrompt:
    line = decode_line(number, raw, _StreamLine)
    prompt = _prompt(line.prompt, line.query)
    if line.query is None:
        prompt = templates.take_out(prompt)
    elif prompt.query != line.query:
        raise LabelledDataError(f"line {number}: query must be in the last user text word for word")
    return LabelledPrompt(prompt=prompt, label=str(line.label), category=line.category)


def _prompt(value: str | list[dict[str, Any]], query: str | None = None) -> CacheKey:
    """Return the cache key of a chat request with these messages and ``query`` as its question."""
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    text = _last_text(messages)
    question = find_question(text or "", names=() if query is None else (query,))
    request = ChatRequest(model="", stream=False, document={"messages": messages}, query=text)
    return chat_key(request, scope="", context=_CONTEXT, question=question)


def _last_text(messages: list[dict[str, Any]]) -> str | None:
    match messages:
        case [*_, {"role": "user", "content": str(text)}]:
            return text
        case _:
            return None


# --- rates ----------------------------------------------------------------------------------------


class Rates(Frozen, omit_defaults=False):
    """Counts and rates of a policy. ``wrong_per_hit`` is null without hits."""

    n: int
    hits: int
    wrong: int
    hit_rate: float | None
    wrong_per_hit: float | None
    wrong_per_request: float | None
    intervals: dict[str, ShareInterval | None]
    """The two-sided 95 % intervals of the three rates, by name."""
    wrong_per_hit_at_least: float
    """The exact one-sided 95 % lower bound. A promised rate below it is certainly broken."""


class Category(Frozen, omit_defaults=False):
    """Counts of one category of a stream."""

    n: int = 0
    hits: int = 0
    wrong: int = 0


class Played(Rates, omit_defaults=False):
    """The results of a stream."""

    audits: int
    """Hits whose prompt was sent upstream as well, to compare the answers."""
    refused: dict[str, int]
    """Misses by the reason against the nearest neighbour: a guard, ``threshold`` and others."""
    categories: dict[str, Category]


class Ordering(Played, omit_defaults=False):
    """A stream, played once. ``seed`` is None for the file's own order."""

    seed: int | None


class StreamReport(Played, omit_defaults=False):
    """A stream, played in one or more orderings. Counts are sums over the orderings.

    All orderings have the same prompts, so the intervals are as wide as those of a single ordering.
    """

    orderings: tuple[Ordering, ...]


def ordering_report(steps: Iterable[PlayedPrompt[Any]], seed: int | None) -> Ordering:
    """Count one play. A hit whose truth is unknown counts as refused: ``unjudged``."""
    refused: Counter[str] = Counter()
    categories: dict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for step in steps:
        count = Counter(n=1)
        if not step.served:
            refused[step.refusal] += 1
        elif step.right is None:
            refused["unjudged"] += 1
        else:
            count += Counter(hits=1, wrong=int(not step.right))
        total += count + Counter(audits=int(step.audited))
        category = getattr(step.row, "category", None)
        if category is not None:
            categories[category] += count
    return Ordering(seed=seed, **_played(total, refused, categories))


def stream_report(orderings: Sequence[Ordering]) -> StreamReport:
    """Add up orderings of one stream."""
    refused: Counter[str] = Counter()
    categories: dict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for each in orderings:
        total += Counter(n=each.n, hits=each.hits, wrong=each.wrong, audits=each.audits)
        refused.update(each.refused)
        for name, category in each.categories.items():
            categories[name] += Counter(msgspec.structs.asdict(category))
    played = _played(total, refused, categories, plays=len(orderings))
    return StreamReport(orderings=tuple(orderings), **played)


def _played(
    total: Counter[str],
    refused: Counter[str],
    categories: Mapping[str, Counter[str]],
    plays: int = 1,
) -> dict[str, Any]:
    """Return the fields of ``Played``."""
    return {
        **count_rates(total["n"], total["hits"], total["wrong"], plays),
        "audits": total["audits"],
        "refused": dict(refused.most_common()),
        "categories": {name: Category(**count) for name, count in sorted(categories.items())},
    }


def count_rates(n: int, hits: int, wrong: int, plays: int = 1) -> dict[str, Any]:
    """Return the fields of ``Rates`` for counts of ``plays`` plays of the same prompts."""
    shares = {
        "hit_rate": (hits, n),
        "wrong_per_hit": (wrong, hits),
        "wrong_per_request": (wrong, n),
    }
    return {
        "n": n,
        "hits": hits,
        "wrong": wrong,
        **{name: count / of if of else None for name, (count, of) in shares.items()},
        "intervals": {
            name: wilson_interval(count / plays, of / plays) for name, (count, of) in shares.items()
        },
        "wrong_per_hit_at_least": least_share(wrong // plays, max(hits // plays, 1)),
    }


def percent(share: float | None) -> str:
    """Return a share as a percentage; "none" if it is not known."""
    return "none" if share is None else f"{share:.2%}"


class ServedPairs(Frozen, omit_defaults=False):
    """Counts of one category of pairs."""

    genuine: int = 0
    genuine_served: int = 0
    traps: int = 0
    traps_served: int = 0


class PairReport(Rates, omit_defaults=False):
    """The results of a file of pairs. A pair with two different answers is a trap."""

    genuine: int
    genuine_served: int
    traps: int
    traps_served: int
    refused: dict[str, int]
    """Misses by their reason: a guard, ``threshold``, ``not-comparable`` and others."""
    categories: dict[str, ServedPairs]


def judge_pairs(
    pairs: Iterable[Pair], prepare: PreparePrompt[P], policy: MatchPolicy[P]
) -> PairReport:
    """Judge each pair by itself. Two equal prompts are an exact hit."""
    refused: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        kind = "genuine" if pair.same_answer else "traps"
        tally = counts[pair.category or "all"]
        tally[kind] += 1
        refusal = _refuse(pair, prepare, policy)
        if refusal is None:
            tally[f"{kind}_served"] += 1
        else:
            refused[refusal] += 1
    total = sum(counts.values(), Counter[str]())
    rates = count_rates(
        n=total["genuine"] + total["traps"],
        hits=total["genuine_served"] + total["traps_served"],
        wrong=total["traps_served"],
    )
    return PairReport(
        **rates,
        genuine=total["genuine"],
        genuine_served=total["genuine_served"],
        traps=total["traps"],
        traps_served=total["traps_served"],
        refused=dict(refused.most_common()),
        categories={name: ServedPairs(**tally) for name, tally in sorted(counts.items())},
    )


def pairs_in_order(rows: Pairs | Stream) -> Sequence[LabelledPrompt]:
    """Return labelled rows as a stream, in which only the prompts of a pair can meet."""
    if isinstance(rows, Stream):
        return rows.rows
    return [
        LabelledPrompt(prompt=_apart(prompt, number), label=label, category=pair.category)
        for number, pair in enumerate(rows.rows)
        for prompt, label in (
            (pair.a, f"{number}"),
            (pair.b, f"{number}" if pair.same_answer else f"{number} other"),
        )
    ]


def _apart(key: CacheKey, number: int) -> CacheKey:
    """Return the prompt's key, moved into a scope that only its pair has."""
    names = ("partition", "exact", "conversation")
    known = [name for name in names if getattr(key, name) is not None]
    return msgspec.structs.replace(key, **{n: f"{number} {getattr(key, n)}" for n in known})


def _refuse(pair: Pair, prepare: PreparePrompt[P], policy: MatchPolicy[P]) -> str | None:
    """Return None for a hit, else the reason of the miss."""
    a, b = pair.a, pair.b
    if a.exact == b.exact:
        return None
    if a.query is None or b.query is None or a.group != b.group:
        return "not-comparable"
    stored, asked = prepare(a.query, a.task), prepare(b.query, b.task)
    if not (stored.usable and asked.usable):
        return "not-comparable"
    similarity = float(stored.vector @ asked.vector)
    if similarity < policy.minimum:
        return "threshold"
    veto = policy.veto(asked.parse, stored.parse)
    if veto is None and not history_judge(policy, prepare)(b, a):
        veto = HISTORY
    nearby = RankedNeighbor(MatchContext(), [Neighbor(id="stored", similarity=similarity)], 0)
    verdict = policy.judge(asked.parse, stored.parse, nearby, veto)
    return None if verdict.serves else verdict.veto or "policy"
