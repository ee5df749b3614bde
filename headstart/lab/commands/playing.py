"""Reads, encodes and plays logs and labelled prompts, and shows their rates as tables."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.progress import track

from headstart.cli.data_sources import LogLine, as_log_lines, read_lines, settings_to_read
from headstart.cli.options import number_table
from headstart.dialects.registry import DIALECTS
from headstart.errors import InvalidRequest
from headstart.factory.caching import admission_of
from headstart.lab.rates import (
    LabelledDataError,
    Pairs,
    decode_line,
    numbered,
    pairs_in_order,
    percent,
    read_labelled,
    same_class,
)
from headstart.lab.stream import PreparedPrompt, ReplayRun, play
from headstart.policies.agreement.judge import AnswerPair
from headstart.policies.freshness import QuestionClass, question_class
from headstart.policies.guards.table import parse_prompt
from headstart.policies.key import KeyContext, Templates, chat_key, find_question
from headstart.policies.learned_rule.error_limit import EXACT_JUDGE, ErrorLimit, JudgeNoise
from headstart.reply import Transcript
from headstart.types import UNDECODABLE, CacheKey, Completion, Frozen, T

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from headstart.embeddings.encoder import OnnxEncoder
    from headstart.lab.rates import Rates
    from headstart.lab.stream import Judge, PlayedPrompt, PreparePrompt, TestedPolicy
    from headstart.policies.admission import Admission
    from headstart.policies.guards.words import Parse

MAX_ERROR_HELP = (
    "Error target: the share of the semantic hits that may be wrong.  "
    f"[default: {ErrorLimit().max_error:g}]"
)
STATE_HELP = "Start from what headstart tune has learned."
FAIL_OVER_HELP = "Exit with 1 if more than this share of hits is wrong, beyond chance."
QUERY_HELP = "Pattern: its group query finds the question inside a templated prompt."


def show_progress(rows: Sequence[T], what: str) -> Iterable[T]:
    """Show progress on the error stream, so that output stays clean for pipes.

    An output that is not a terminal, such as the log of a CI job, gets one line.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        click.echo(f"{what}: {len(rows):,} …", err=True)
    return track(rows, what, console=console, transient=True, disable=not console.is_terminal)


@cache
def _encoder() -> OnnxEncoder:
    """Return the default encoder, which is loaded once."""
    from headstart.embeddings.encoder import OnnxEncoder

    return OnnxEncoder()


def encode_all(keys: Iterable[CacheKey]) -> PreparePrompt[Parse]:
    """Encode and parse each prompt once, with the default encoder. Other texts follow on demand."""
    from headstart.embeddings.sketch import load_sketcher

    encoder, sketcher = _encoder(), load_sketcher()

    @cache
    def prepare(text: str, task: str = "") -> PreparedPrompt[Parse]:
        encoding = encoder.encode(text)
        sketch = None if sketcher is None else sketcher.sketch(text)
        parse = parse_prompt(text, encoding, task)
        return PreparedPrompt(encoding.sentence, parse, encoding.complete, sketch)

    prompts = {(key.query, key.task): None for key in keys if key.query is not None}
    for text, task in show_progress([*prompts], "Encoding"):
        prepare(text, task)
    return prepare


def exit_if_more_wrong(rates: Rates, most: float | None) -> None:
    """Exit with 1 when more than ``most`` of the hits were wrong, beyond chance."""
    least = rates.wrong_per_hit_at_least
    if most is not None and least > most:
        raise click.ClickException(
            f"at least {least:.2%} of the hits were wrong (one-sided 95 %), "
            f"over --fail-over {most:.2%}"
        )


def share_with_interval(
    rates: Rates, name: str, *, none: str = "none: nothing was served", what: str = "95 %: "
) -> str:
    """Return a rate, and in brackets ``what`` and its interval."""
    interval = rates.intervals[name]
    if interval is None:
        return none
    return f"{getattr(rates, name):.2%} ({what}{interval.low:.2%} to {interval.high:.2%})"


def comparison(first: str, rows: Iterable[tuple[str, Sequence[str], Rates]], *more: str) -> Table:
    """Return a table of rates. A row has a name, its own cells under ``more``, and rates."""
    compared = number_table(first, *more, "hits", "wrong/hit (95 %)", "wrong/request (95 %)")
    for name, cells, rates in rows:
        errors = (
            share_with_interval(rates, key, none="none", what="")
            for key in ("wrong_per_hit", "wrong_per_request")
        )
        compared.add_row(name, *cells, percent(rates.hit_rate), *errors)
    return compared


# --- what is played -------------------------------------------------------------------------------


class ReplayInput(NamedTuple):
    """Rows to play in order, with the functions that encode and judge them."""

    rows: list[Any]
    prepare: PreparePrompt[Parse]
    truth: Judge[Any]
    noise: JudgeNoise
    """The errors of ``truth`` as a judge; labels have none."""
    skipped: dict[str, int]
    """The number of lines that the cache would not store, by reason."""
    texts: list[str]
    """The whole last user texts."""
    pairs: bool = False


def play_all(
    source: ReplayInput, tested: TestedPolicy, what: str, *, shadow: bool = False
) -> list[PlayedPrompt[Any]]:
    """Play all rows in order with a new policy. Of a pair only the second prompt counts."""
    rows, prepare, truth = source.rows, source.prepare, source.truth
    played = play_rows(rows, prepare, tested, truth, what, null_rate=1.0, shadow=shadow)
    return [each for each in played if not (source.pairs and each.refusal == "nothing-stored")]


def play_rows(
    rows: Sequence[Any],
    prepare: PreparePrompt[Parse],
    tested: TestedPolicy,
    truth: Judge[Any],
    what: str,
    chance: random.Random | None = None,
    **given: Any,
) -> list[PlayedPrompt[Any]]:
    """Play rows in order with a policy. ``given`` are fields of the ``ReplayRun``."""
    draw = (chance or random.Random(0)).random  # noqa: S311 - must be repeatable, guards no secret
    fields = {"truth": truth, "judge": truth, "draw": draw, **given}
    return list(play(show_progress(rows, what), prepare, ReplayRun(*tested, **fields)))


@contextlib.contextmanager
def file_names_in_errors(*paths: Path) -> Iterator[None]:
    """Name the files in a LabelledDataError."""
    try:
        yield
    except LabelledDataError as error:
        names = " and ".join(map(str, paths))
        counted = ", counted through all files" if len(paths) > 1 else ""
        raise LabelledDataError(f"{names}{counted}: {error}") from error


def read_replay_input(
    paths: Sequence[Path],
    pattern: re.Pattern[str] | None = None,
    config: Path | None = None,
) -> ReplayInput:
    """Read files of one kind as one file.

    The group ``query`` of ``pattern`` is the question inside a log's prompts. A log is read as the
    cache of ``config`` would take it. Raises ConfigError, and LabelledDataError; its line numbers
    count through all files.
    """
    admission = admission_of(settings_to_read(config).cache)
    with file_names_in_errors(*paths):
        lines = list(as_log_lines(line for path in paths for line in read_lines(path)))
        whole = [b"" if is_cut_off(line) else line for line in lines]
        if not any(whole):
            whole = lines  # an error then names the line that is cut off
        if is_log(decode_line(*numbered(whole)[0], dict[str, Any])):
            cut_off = sum(map(bool, lines)) - sum(map(bool, whole))
            return _recorded(read_log(whole), pattern, cut_off, admission)
        labelled = read_labelled(
            lines, or_else=", a logged call needs request and response, or messages"
        )
    rows = list(pairs_in_order(labelled))
    texts = [row.prompt.query for row in rows if row.prompt.query is not None]
    pairs = isinstance(labelled, Pairs)
    return ReplayInput(
        rows, encode_all(row.prompt for row in rows), same_class, EXACT_JUDGE, {}, texts, pairs
    )


# --- logs -----------------------------------------------------------------------------------------


class LoggedExchange(Frozen):
    """A request body and its response body in a chat dialect. The default is OpenAI's."""

    line: int
    request: bytes
    response: bytes
    dialect: str
    scope: str = ""
    at: float | None = None


class Recorded(Frozen):
    """One logged request with its cache key and its answer."""

    prompt: CacheKey
    text: str | None
    """The whole last user text; ``prompt.query`` may be only the question in it."""
    answer: Completion


def is_log(first: dict[str, Any]) -> bool:
    """Return whether a file with this first line is a log, not labelled prompts."""
    return bool(first.keys() & {"request", "messages"})


def is_cut_off(line: bytes) -> bool:
    """Return whether a line is JSON whose end is missing, because its writer was stopped."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except UNDECODABLE as error:
        return bool(line.strip()) and str(error) == "Input data was truncated"
    return False


def read_log(lines: Iterable[bytes]) -> list[LoggedExchange]:
    """Read a log; sort it by time if all lines have it. Raises LabelledDataError."""
    found = [
        _exchange(number, decode_line(number, line, LogLine)) for number, line in numbered(lines)
    ]
    if all(exchange.at is not None for exchange in found):
        found.sort(key=lambda exchange: exchange.at or 0.0)
    return found


def _exchange(number: int, line: LogLine) -> LoggedExchange:
    bodies = msgspec.structs.replace(line, model=line.model or "unknown").bodies()
    if bodies is None:
        raise LabelledDataError(
            f"line {number}: give request and response (OpenAI chat bodies), or messages that end "
            "with the assistant's answer"
        )
    request, response = map(msgspec.json.encode, bodies)
    return LoggedExchange(
        line=number,
        request=request,
        response=response,
        dialect=line.dialect or "openai-chat",
        scope=line.scope,
        at=line.at,
    )


def _recorded(
    exchanges: list[LoggedExchange],
    pattern: re.Pattern[str] | None,
    cut_off: int,
    admission: Admission,
) -> ReplayInput:
    skipped = Counter({"cut-off-line": cut_off} if cut_off else {})
    rows: list[Recorded] = []
    templates = Templates() if pattern is None else None
    for exchange in show_progress(exchanges, "Reading"):
        found = _read_exchange(exchange, pattern, templates, admission)
        if isinstance(found, str):
            skipped[found] += 1
        else:
            rows.append(found)
    texts = [row.text for row in rows if row.text is not None]
    prepare = encode_all(row.prompt for row in rows)
    return ReplayInput(rows, prepare, _agreement(), JudgeNoise(), dict(skipped), texts)


def _read_exchange(
    exchange: LoggedExchange,
    pattern: re.Pattern[str] | None,
    templates: Templates | None,
    admission: Admission,
) -> Recorded | str:
    """Return the row, or the reason why the proxy would not store it. Raises LabelledDataError."""
    dialect = DIALECTS.get(exchange.dialect)
    if dialect is None:
        raise LabelledDataError(
            f"line {exchange.line}: dialect: {exchange.dialect!r} is none of {', '.join(DIALECTS)}"
        )
    try:
        request = dialect.parse_request(exchange.request)
    except InvalidRequest as error:
        raise LabelledDataError(f"line {exchange.line}: request: {error}") from error
    transcript = Transcript()
    transcript.feed(dialect.decode_body(200, exchange.response))
    answer = transcript.completion(exchange.at or 0.0)
    if answer is None:
        return "no-whole-answer"
    refusal = admission.refuse_lookup(request) or admission.refuse_store(request, answer)
    if refusal is not None:
        return refusal
    context = KeyContext(dialect=dialect.name, path=b"/v1/chat/completions", upstream="")
    question = find_question(request.query or "", pattern=pattern)
    key = chat_key(request, scope=exchange.scope, context=context, question=question)
    if (
        not key.query
        or admission.refuse_semantic(request) is not None
        or question_class(key.query) is QuestionClass.LIVE
    ):
        key = msgspec.structs.replace(key, query=None)
    elif templates is not None:
        key = templates.take_out(key)
    return Recorded(prompt=key, text=request.query, answer=answer)


def _agreement() -> Judge[Recorded]:
    """Return the agreement judge of the proxy. It judges each pair once."""
    verdicts: dict[tuple[int, int], bool | None] = {}

    @cache
    def vector(text: str) -> Any:
        return _encoder().encode(text).sentence

    def agrees(fresh: Recorded, cached: Recorded) -> bool | None:
        ids = (id(fresh), id(cached))
        if ids not in verdicts:
            questions = (fresh.prompt.query, cached.prompt.query)
            pair = AnswerPair(fresh.answer, cached.answer, questions)
            texts = pair.texts_to_encode
            cosine = float(vector(texts[0]) @ vector(texts[1])) if texts else None
            verdicts[ids] = pair.judge(cosine).same
        return verdicts[ids]

    return agrees


def question_pattern(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    """Read ``--query``. Raises BadParameter."""
    if value is None:
        return None
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{error}") from error
    if "query" not in pattern.groupindex:
        raise click.BadParameter("name the question's group: (?P<query>...)")
    return pattern
