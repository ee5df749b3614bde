"""Compares our books with a provider's own account of the usage, by day and model.

It reads exports of the consoles and the usage APIs of OpenAI and Anthropic, as CSV or JSON: numbers
of tokens, or costs.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.attempts import AttemptOutcome
from headstart.decisions import Outcome
from headstart.errors import ConfigError
from headstart.report.accounts import day_of
from headstart.report.values import Reconciled, Reconciliation, UsageSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headstart.observe import Served

TOLERANCE = 0.01
"""Largest relative difference that counts as equal: providers round, and their day begins at
another second."""
_DATE = re.compile(r"-(?:\d{4}-\d\d-\d\d|\d{8})$")
_PLAIN = re.compile(r"[^a-z0-9-]+")
NUMBERS = ("calls", "prompt_tokens", "completion_tokens", "usd")


class DayAndModel(NamedTuple):
    """The day and model of calls. ``model`` is a ``plain_model``."""

    day: str
    model: str


class ExportRow(NamedTuple):
    """One row of an export. None: the export does not have this value."""

    day: str
    model: str
    calls: int | None = None
    prompt_tokens: int | None = None
    """Prompt tokens, with those that were read from the provider's prefix cache or written to
    it."""
    completion_tokens: int | None = None
    usd: float | None = None


def plain_model(name: str) -> str:
    """Return a model's name in a form that books and exports have in common.

    ``openai/gpt-4o-2024-08-06`` is ``gpt-4o``, ``Claude Haiku 4.5`` is ``claude-haiku-4-5``.
    """
    name = name.strip().rpartition("/")[2].lower()
    return _PLAIN.sub("-", _DATE.sub("", name)).strip("-")


# --- the exports ------------------------------------------------------------------------------


def read_usage(data: bytes) -> list[ExportRow]:
    """Return the rows of an export. Raises ConfigError with its error."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("it is not a text: export it as CSV or JSON") from error
    read = _read_json if text.lstrip()[:1] in ("{", "[") else _read_csv
    try:
        rows = list(read(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"a number, a date or a field of it is not valid, or its end is missing: {error}"
        ) from error
    if not rows:
        raise ConfigError("it has no rows: export a period that has calls")
    return rows


def _read_csv(text: str) -> Iterator[ExportRow]:
    reader = csv.DictReader(io.StringIO(text))
    read = _csv_form(frozenset(reader.fieldnames or ()))
    for row in reader:
        if None in row or None in row.values():
            raise ConfigError(
                f"line {reader.line_num} has not as many fields as the first line: export it again"
            )
        yield from read(row)


def _csv_form(columns: frozenset[str]) -> Callable[[Mapping[str, str]], Iterator[ExportRow]]:
    for needed, read in _CSV_FORMS.items():
        if columns.issuperset(needed):
            return read
    if {"start_time", "amount_value"} <= columns or {"start_time", "input_tokens"} <= columns:
        raise ConfigError("it is not grouped by model: export it again, grouped by model or item")
    wanted = "; or ".join(", ".join(each) for each in _CSV_FORMS)
    raise ConfigError(
        "it is no export of OpenAI or Anthropic, whose columns are among others "
        f"{wanted}. Its columns are {', '.join(sorted(columns))[:200] or 'none'}"
    )


def _anthropic_tokens(row: Mapping[str, str]) -> Iterator[ExportRow]:
    prompt = sum(_int(value) for name, value in row.items() if name.startswith("usage_input_"))
    day = row["usage_date_utc"][:10]
    answer = _int(row["usage_output_tokens"])
    yield ExportRow(day, row["model_version"], prompt_tokens=prompt, completion_tokens=answer)


def _anthropic_costs(row: Mapping[str, str]) -> Iterator[ExportRow]:
    yield ExportRow(row["usage_date_utc"][:10], row["model"], usd=float(row["cost_usd"] or 0))


def _openai_costs(row: Mapping[str, str]) -> Iterator[ExportRow]:
    if row["line_item"]:
        _check_currency(row.get("amount_currency"))
        model = row["line_item"].partition(",")[0]
        yield ExportRow(
            day_of(float(row["start_time"])), model, usd=float(row["amount_value"] or 0)
        )


def _openai_tokens(row: Mapping[str, str]) -> Iterator[ExportRow]:
    if row["model"]:  # an empty bucket names no model
        yield ExportRow(
            day_of(float(row["start_time"])),
            row["model"],
            _int(row.get("num_model_requests")),
            _int(row["input_tokens"]),
            _int(row["output_tokens"]),
        )


_CSV_FORMS = {
    ("usage_date_utc", "model_version", "usage_output_tokens"): _anthropic_tokens,
    ("usage_date_utc", "model", "cost_usd"): _anthropic_costs,
    ("start_time", "amount_value", "line_item"): _openai_costs,
    ("start_time", "model", "input_tokens", "output_tokens"): _openai_tokens,
}
"""The columns that tell the exports apart, and the function that reads a row."""


def _check_currency(name: str | None) -> None:
    if name and name.upper() != "USD":
        raise ConfigError(f"its amounts are in {name.upper()}, and the books are in dollars")


def _int(value: str | int | None) -> int:
    return int(float(value or 0))


def _read_json(text: str) -> Iterator[ExportRow]:
    pages: Any = msgspec.json.decode(text)
    pages = pages if isinstance(pages, list) else [pages]
    if pages and isinstance(pages[-1], dict) and pages[-1].get("has_more"):
        raise ConfigError("more pages follow its last one: put all pages into one JSON list")
    for page in pages:
        buckets = page.get("data") if isinstance(page, dict) else None
        if not isinstance(buckets, list):
            raise ConfigError('a page of a usage API has a list "data"')
        for bucket in buckets:
            begin = bucket.get("start_time")
            day = bucket["starting_at"][:10] if begin is None else day_of(float(begin))
            for result in bucket.get("results", ()):
                yield _of_result(day, result)


def _of_result(day: str, result: Mapping[str, Any]) -> ExportRow:
    """Return a result of a bucket of OpenAI's or Anthropic's usage or cost API."""
    amount = result.get("amount")
    item = result.get("line_item") or result.get("description")
    model = result.get("model") or (item and item.partition(",")[0])
    if not model:
        raise ConfigError("it is not grouped by model: ask for it with group_by")
    if amount is not None:
        _check_currency((amount if isinstance(amount, dict) else result).get("currency"))
    if isinstance(amount, dict):
        return ExportRow(day, model, usd=float(amount["value"]))
    if amount is not None:  # Anthropic counts cents
        return ExportRow(day, model, usd=float(amount) / 100)
    if "uncached_input_tokens" in result:
        written = result.get("cache_creation") or {}
        prompt = result["uncached_input_tokens"] + result.get("cache_read_input_tokens", 0)
        prompt += sum(written.values())
        answer = result["output_tokens"]
        return ExportRow(day, model, prompt_tokens=prompt, completion_tokens=answer)
    return ExportRow(
        day,
        model,
        result.get("num_model_requests"),
        result["input_tokens"],
        result["output_tokens"],
    )


# --- the comparison -----------------------------------------------------------------------------


class _Sums:
    """The usage of the calls to one model on one day."""

    def __init__(self) -> None:
        self.calls = self.prompt_tokens = self.completion_tokens = self.estimated = 0
        self.usd: float | None = None

    def add(self, prompt: int, completion: int, usd: float | None) -> None:
        """Count a call."""
        self.calls += 1
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        if usd is not None:
            self.usd = (self.usd or 0.0) + usd

    def values(self, names: frozenset[str]) -> UsageSums:
        """Return the sums of these names, which the export has."""
        known = {name: getattr(self, name) for name in NUMBERS if name in names}
        return UsageSums(**known)


class Books:
    """Collects the upstream calls of booked requests, to compare them with an export."""

    def __init__(self) -> None:
        self._sums: defaultdict[DayAndModel, _Sums] = defaultdict(_Sums)
        self._upstreams: defaultdict[str, set[str]] = defaultdict(set)
        """The upstreams at which each model was called."""
        self._first: str | None = None

    def add(self, row: Served) -> None:
        """Count the calls of a request or an audit. The usage of relayed requests is not read."""
        if row.outcome is Outcome.RELAY:
            return
        day = day_of(row.at)
        self._first = day if self._first is None else min(day, self._first)
        for each in row.attempts:
            if each.outcome is not AttemptOutcome.FAILED or each.cost_usd:
                sums = self._of(day_of(each.at), each.model, each.upstream)
                sums.add(each.prompt_tokens, each.completion_tokens, each.cost_usd)
                sums.estimated += each.estimated
        # An audit without attempts is a call of the judge.
        if row.outcome is Outcome.AUDIT and not row.attempts:
            sums = self._of(day, row.model, row.upstream)
            sums.add(row.prompt_tokens, row.completion_tokens, row.cost_usd)

    def _of(self, day: str, model: str, upstream: str) -> _Sums:
        name = plain_model(model)
        self._upstreams[name].add(upstream)
        return self._sums[DayAndModel(day, name)]

    def reconcile(self, export: list[ExportRow]) -> Reconciliation:
        """Compare the books with an export, on the days that both cover.

        Of our own calls, only calls to upstreams count that were asked for a model of the export.
        """
        theirs = _sums_of(export)
        names = frozenset(
            name for name in NUMBERS for each in export if getattr(each, name) is not None
        )
        days = {each.day for each in theirs}
        asked = {name for each in theirs for name in self._upstreams.get(each.model, ())}
        ours = {
            key: sums
            for key, sums in self._sums.items()
            if key.day in days and self._upstreams[key.model] & asked
        }
        covered = {each for each in theirs if self._first is not None and each.day >= self._first}
        lines = [
            _reconciled(key, ours.get(key, _Sums()), theirs.get(key, _Sums()), names)
            for key in sorted({*covered, *ours})
        ]
        return Reconciliation(
            lines=tuple(lines),
            ours=_total([line.ours for line in lines], names),
            theirs=_total([line.theirs for line in lines], names),
            days_before_the_books=len(days - {each.day for each in covered}),
        )


def _sums_of(export: list[ExportRow]) -> dict[DayAndModel, _Sums]:
    """Return the sums of an export, by day and model."""
    found: defaultdict[DayAndModel, _Sums] = defaultdict(_Sums)
    for each in export:
        sums = found[DayAndModel(each.day, plain_model(each.model))]
        for name in NUMBERS:
            value = getattr(each, name)
            if value is not None:
                setattr(sums, name, (getattr(sums, name) or 0) + value)
    return found


def _reconciled(key: DayAndModel, ours: _Sums, theirs: _Sums, names: frozenset[str]) -> Reconciled:
    mine, yours = ours.values(names), theirs.values(names)
    return Reconciled(
        day=key.day,
        model=key.model,
        ours=mine,
        theirs=yours,
        estimated=ours.estimated,
        differs=tuple(name for name in NUMBERS if name in names and _apart(mine, yours, name)),
    )


def _apart(ours: UsageSums, theirs: UsageSums, name: str) -> bool:
    a: float = getattr(ours, name) or 0.0
    b: float = getattr(theirs, name) or 0.0
    return abs(a - b) > TOLERANCE * max(a, b)


def _total(parts: list[UsageSums], names: frozenset[str]) -> UsageSums:
    sums = {}
    for name in names:
        known = [value for each in parts if (value := getattr(each, name)) is not None]
        sums[name] = sum(known) if known else None
    return UsageSums(**sums)
