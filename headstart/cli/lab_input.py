"""Reads what ``tune`` and ``replay`` play: labelled prompts, or a log of requests and answers."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from headstart.cli.lab import encoded, tracked
from headstart.errors import InvalidRequest

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headstart.lab.contenders import Contender
    from headstart.lab.judges import Judge
    from headstart.lab.labelled import Labelled
    from headstart.lab.logs import Exchange, Recorded
    from headstart.lab.stream import Prepared, Step
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.policies.guards.parse import Parse
    from headstart.policies.ratchet.settings import JudgeNoise
    from headstart.types import CacheKey, ChatRequest, Completion


class Material(NamedTuple):
    """Rows to play in order, and how they are understood and judged."""

    rows: list[Any]
    prepare: Callable[[str], Prepared[Parse]]
    truth: Judge[Any]
    noise: JudgeNoise
    """Of ``truth`` as a judge: none for labels."""
    skipped: dict[str, int]
    """Lines that the cache would not keep, by reason."""
    texts: list[str]
    """The last user texts, whole."""
    pairs: bool = False


def play_all(
    material: Material, contender: Contender, what: str, *, shadow: bool = False
) -> list[Step[Any]]:
    """Play all rows in order against a contender from cold. Of pairs only the second counts."""
    from headstart.lab.conversations import history_judge
    from headstart.lab.stream import Game, play

    chance = random.Random(0)  # noqa: S311 - must be repeatable, guards no secret
    truth = material.truth
    game = Game(
        contender.policy,
        contender.domain,
        truth,
        truth,
        chance.random,
        history_judge(contender.policy, material.prepare),
        null_rate=1.0,
        shadow=shadow,
    )
    steps = list(play(tracked(material.rows, what), material.prepare, game))
    return [step for step in steps if not (material.pairs and step.refusal == "nothing-stored")]


def read_material(paths: Sequence[Path], pattern: re.Pattern[str] | None = None) -> Material:
    """Read files of one kind as one; ``pattern`` names the question inside a log's prompts.

    Raises LabelledDataError; its line numbers count through all files.
    """
    from headstart.lab.labelled import Pairs, decode_line, numbered, read_labelled
    from headstart.lab.logs import is_cut_off, is_log, read_log
    from headstart.lab.pairs import pairs_in_order
    from headstart.policies.ratchet.settings import EXACT_JUDGE

    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    whole = [b"" if is_cut_off(line) else line for line in lines]
    if is_log(decode_line(*numbered(whole)[0], dict[str, Any])):
        cut_off = sum(map(bool, lines)) - sum(map(bool, whole))
        return _recorded(read_log(whole), pattern, cut_off)
    labelled = read_labelled(lines)
    rows = list(pairs_in_order(labelled))
    texts = [row.prompt.query for row in rows if row.prompt.query is not None]
    pairs = isinstance(labelled, Pairs)
    return Material(rows, encoded(texts), same_class, EXACT_JUDGE, {}, texts, pairs)


def same_class(fresh: Labelled, cached: Labelled) -> bool:
    """Judge by the labels."""
    return fresh.label == cached.label


def _recorded(exchanges: list[Exchange], pattern: re.Pattern[str] | None, cut_off: int) -> Material:
    from headstart.policies.ratchet.settings import JudgeNoise

    skipped = Counter({"cut-off-line": cut_off} if cut_off else {})
    rows: list[Recorded] = []
    reader = _Reader(pattern)
    for exchange in tracked(exchanges, "Reading"):
        found = reader.read(exchange)
        if isinstance(found, str):
            skipped[found] += 1
        else:
            rows.append(found)
    texts = [row.text for row in rows if row.text is not None]
    prepare = encoded(row.prompt.query for row in rows)
    return Material(rows, prepare, _Agreement(), JudgeNoise(), dict(skipped), texts)


class _Reader:
    """Understands exchanges as the engine does."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        from headstart.factory.upstreams import dialects
        from headstart.policies.admission import Admission

        self._dialects = dialects()
        self._admission = Admission()
        self._pattern = pattern

    def read(self, exchange: Exchange) -> Recorded | str:
        """Return the row, or why the cache would not keep it. Raises LabelledDataError."""
        from headstart.lab.labelled import LabelledDataError
        from headstart.lab.logs import Recorded

        dialect = self._dialects.get(exchange.dialect)
        if dialect is None:
            raise LabelledDataError(
                f"line {exchange.line}: dialect: {exchange.dialect!r} is none of "
                f"{', '.join(self._dialects)}"
            )
        try:
            request = dialect.parse_request(exchange.request)
        except InvalidRequest as error:
            raise LabelledDataError(f"line {exchange.line}: request: {error}") from error
        answer = _answer(dialect, exchange)
        if answer is None:
            return "no-whole-answer"
        refusal = self._admission.refuse_store(request, answer)
        if refusal is not None:
            return refusal
        key = self._key(dialect, request, exchange.scope)
        return Recorded(prompt=key, text=request.query, answer=answer)

    def _key(self, dialect: Dialect, request: ChatRequest, scope: str) -> CacheKey:
        from headstart.policies.key import KeyContext, chat_key
        from headstart.policies.questions import find_question

        context = KeyContext(dialect=dialect.name, path=b"/v1/chat/completions", upstream="")
        question = find_question(request.query or "", pattern=self._pattern)
        key = chat_key(request, scope=scope, context=context, question=question)
        if self._admission.refuse_semantic(request) is not None or not key.query:
            return msgspec.structs.replace(key, query=None)
        return key


def _answer(dialect: Dialect, exchange: Exchange) -> Completion | None:
    from headstart.middleware.collect import Collector

    collector = Collector()
    collector.feed(dialect.decode_body(200, exchange.response))
    return collector.completion(exchange.at or 0.0)


class _Agreement:
    """The judge that ships, as production asks it; each pair is judged once."""

    def __init__(self) -> None:
        from headstart.embeddings.encoder import OnnxEncoder

        self._encoder = OnnxEncoder()
        self._vectors: dict[str, Any] = {}
        self._words: dict[tuple[int, int], bool | None] = {}

    def __call__(self, fresh: Recorded, cached: Recorded) -> bool | None:
        pair = (id(fresh), id(cached))
        if pair not in self._words:
            self._words[pair] = self._judge(fresh, cached)
        return self._words[pair]

    def _judge(self, fresh: Recorded, cached: Recorded) -> bool | None:
        from headstart.policies.agreement.judge import judge, texts_to_encode

        texts = texts_to_encode(fresh.answer, cached.answer)
        cosine = None
        if texts:
            cosine = float(self._vector(texts[0]) @ self._vector(texts[1]))
        questions = (fresh.prompt.query, cached.prompt.query)
        return judge(fresh.answer, cached.answer, questions, cosine).same

    def _vector(self, text: str) -> Any:
        if text not in self._vectors:
            self._vectors[text] = self._encoder.encode(text).sentence
        return self._vectors[text]


def question_pattern(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    """Read ``--query``. Raises BadParameter."""
    import re

    if value is None:
        return None
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{error}") from error
    if "query" not in pattern.groupindex:
        raise click.BadParameter("name the question's group: (?P<query>...)")
    return pattern


query_option = click.option(
    "--query",
    "pattern",
    metavar="REGEX",
    callback=question_pattern,
    help="Its group query is the question inside a templated prompt.",
)
