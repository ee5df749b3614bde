"""``headstart batch``: answers a file of requests, here or at a provider's batch endpoint.

With ``--tier batch``, requests that the cache cannot answer go to the provider's batches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from headstart.cli.data_sources import bearer_key, lines_of
from headstart.cli.options import (
    COUNT,
    FILE,
    OLD_FILE,
    Share,
    argument,
    command,
    config_field,
    json_field,
    option,
    print_json,
    setting,
    upstream_field,
)
from headstart.cli.serve import add_discovered
from headstart.config.loading import load_settings
from headstart.errors import ConfigError, HeadstartError
from headstart.middleware.asgi import not_found
from headstart.middleware.batches.documents import CHUNK_TOKENS, MapOptions
from headstart.middleware.batches.journal import BatchJournal, BatchRequest, read_requests
from headstart.middleware.batches.run import BatchBooks, BatchRun
from headstart.middleware.observers import Observers
from headstart.middleware.upstreams.batched import BatchDesk, BatchedUpstream, BatchTier, InBatch
from headstart.mount import build_gateway
from headstart.observe import Observation, Served
from headstart.report.sections import counted, duration
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headstart.middleware.concurrency import ConcurrencyLimit
    from headstart.settings import Settings


PRICE = 0.5
"""Price of a call in a batch at OpenAI and Anthropic, as a share of the usual price (November
2026)."""
ENCODER_WAIT_MS = 10_000
"""Wait for the encoder: a batch can wait, and a second answer would cost money."""
REWRITTEN_S, LOGGED_S = 0.5, 10.0
"""Seconds between two lines of progress, on a terminal and elsewhere."""
RATE_OVER_S = 60.0
"""The estimate of the remaining time uses the requests of these last seconds."""


@dataclass(frozen=True)
class BatchOptions:
    """The options of ``headstart batch``."""

    file: Path = argument("FILE.jsonl", OLD_FILE)
    output: Path | None = option(
        None, "File for the answers.  [default: FILE.out.jsonl]", FILE, metavar="FILE"
    )
    config: Path | None = config_field()
    upstream: str | None = upstream_field("Base URL of one upstream.")
    key_env: str | None = option(
        None, "Variable with the key to send, if the upstream has none of its own.", metavar="NAME"
    )
    model: str | None = option(None, "Model of the requests that name none.", metavar="NAME")
    max_error: float | None = option(
        None,
        "Share of the semantic hits that may be wrong.  [default: cache.max_error]",
        Share(),
        metavar="SHARE",
    )
    store: str | None = setting("cache.store", metavar="URL")
    map: str | None = option(
        None,
        "Field of a line with a long text or a list: each part of it gets a call.",
        metavar="FIELD",
    )
    reduce: str | None = option(
        None, "Prompt that joins the answers to the parts.", metavar="PROMPT"
    )
    chunk_tokens: int = option(CHUNK_TOKENS, "Most tokens of a part.", click.IntRange(16))
    tier: str | None = option(
        None,
        "Ask in the provider's batches: within a day, at half the price.",
        click.Choice(["batch"]),
    )
    concurrency: int = option(256, "Most calls at the same time.", COUNT)
    as_json: bool = json_field()


@command(BatchOptions)
def batch(options: BatchOptions) -> None:
    """Answer the requests of a file, and write the answers in the order of the file.

    A line of FILE is a request in OpenAI's batch format, or {"id": ..., "prompt": ...}. All
    requests go through the cache and the routes of the configuration. The number of calls at the
    same time follows the limits of the providers. After Ctrl-C, kill or a loss of power, the same
    command goes on where it stopped; requests that failed are asked again by the next run.

    Examples:
      headstart batch requests.jsonl
      headstart batch prompts.jsonl --upstream http://127.0.0.1:9090/v1 --model gpt-5-mini
      headstart batch requests.jsonl --output answers.jsonl --max-error 1% --json
      headstart batch contracts.jsonl --map text --reduce "Write one summary of these notes:"
    """
    if options.reduce is not None and options.map is None:
        raise ConfigError("--reduce joins the answers to the parts of --map: add --map FIELD")
    mapped = None
    if options.map is not None:
        mapped = MapOptions(
            field=options.map, reduce=options.reduce, chunk_tokens=options.chunk_tokens
        )
    settings = _settings(options)
    key = options.key_env
    headers = () if key is None else ((b"authorization", bearer_key(key).encode()),)
    output = options.output or options.file.with_suffix(".out.jsonl")
    path = output.with_name(output.name + ".journal")
    if output.exists() and not path.exists():
        raise ConfigError(f"{output} exists: delete it, or name another file with --output")
    try:
        lines = lines_of(options.file)
        requests = read_requests(lines, options.model, options.map)
    except ConfigError as error:
        raise ConfigError(f"{options.file}, {error}") from error
    if not requests:
        raise ConfigError(f"{options.file} has no request")
    logging.basicConfig(level="ERROR", format="%(levelname)s %(name)s: %(message)s")
    journal = BatchJournal(path, requests, mapped)
    whole = False
    try:
        summary = anyio.run(_run, settings, journal, requests, headers, options, mapped)
        if summary.unasked == 0:
            _write(journal, output)
            whole = summary.failed == 0
    finally:
        journal.close(delete=whole)
    if options.as_json:
        print_json(summary)
    else:
        click.echo(summary_text(summary))
        if summary.unasked == 0:
            click.echo(f"the answers are in {output}")
    if summary.stopped_by == INTERRUPTED:
        sys.exit(130)
    if summary.failed or summary.unasked:
        sys.exit(1)


def _write(journal: BatchJournal, output: Path) -> None:
    try:
        journal.write_output(output)
    except OSError as error:
        raise HeadstartError(
            f"{output} cannot be written: {error.strerror}; {journal.path} keeps the answers, and "
            "the same command writes them again"
        ) from error


def _settings(options: BatchOptions) -> Settings:
    """Return the settings of the run. Raises ConfigError."""
    overrides = {
        "cache.store": options.store,
        "cache.max_error": options.max_error,
        "upstream": None if options.upstream is None else [{"base_url": options.upstream}],
    }
    defaults = {
        "encoder.max_wait_ms": ENCODER_WAIT_MS,
        "server.max_concurrency": max(512, options.concurrency),
    }
    settings = load_settings(options.config, os.environ, overrides, defaults)
    if not settings.upstream:
        settings, notes = add_discovered(settings)
        for note in notes:
            click.echo(note, err=True)
    return settings if options.tier is None else _in_batches(settings)


def _in_batches(settings: Settings) -> Settings:
    """Return settings with the prices of batches, and without comparisons, which need an answer."""
    replace = msgspec.structs.replace
    cheaper = tuple(
        replace(each, price_multiplier=each.price_multiplier * PRICE) for each in settings.upstream
    )
    audit = replace(settings.cache.audit, mode="off")
    return replace(settings, upstream=cheaper, cache=replace(settings.cache, audit=audit))


# --- the run ---------------------------------------------------------------------------------

INTERRUPTED = "interrupted"


class BatchSummary(Frozen, omit_defaults=False):
    """The results of a batch. Calls and dollars count this run only."""

    requests: int
    outcomes: dict[str, int]
    """Number of answered requests, by the way the answer came."""
    failed: int
    unasked: int
    """Requests that wait for the next run."""
    resumed: int
    """Requests that an earlier run had answered."""
    calls: int
    """Calls to providers."""
    batches: int
    """The batches of providers that had these calls."""
    refusals: int
    """How often a provider said to wait."""
    refused_rewordings: dict[str, int]
    """Rewordings that the cache did not answer, by the reason."""
    concurrency: int
    """The number of calls at a time that providers accepted at the end."""
    seconds: float
    paid_usd: float | None
    """None: no price is known."""
    would_have_cost_usd: float | None
    stopped_by: str | None
    """Why it ended early."""


async def _run(
    settings: Settings,
    journal: BatchJournal,
    requests: list[BatchRequest],
    headers: Headers,
    options: BatchOptions,
    mapped: MapOptions | None,
) -> BatchSummary:
    """Ask all requests that have no answer yet, and return the summary."""
    books = BatchBooks()
    limits: list[ConcurrencyLimit] = []
    desk = BatchDesk() if options.tier is not None else None
    gateway = build_gateway(
        settings,
        not_found,
        observers=Observers([books]) if desk is None else _WithoutDeferred([books]),
        on_start=lambda parts: limits.append(parts.concurrency),
        make_upstream=None if desk is None else partial(BatchedUpstream, desk=desk),
    )
    tier = None if desk is None else BatchTier(desk, journal)
    await gateway.running()
    began = time.perf_counter()
    try:
        run = BatchRun(
            gateway,
            limits[0],
            books,
            journal,
            requests,
            headers=headers,
            most=options.concurrency,
            mapped=mapped,
            tier=tier,
        )
        async with anyio.create_task_group() as beside:
            beside.start_soon(_show_progress, run, books)
            with _stopped_by_signals(run, beside.cancel_scope):
                await run.run()
            beside.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await gateway.aclose()
    return _summary(run, books, tier, time.perf_counter() - began)


def _summary(
    run: BatchRun, books: BatchBooks, tier: BatchTier | None, seconds: float
) -> BatchSummary:
    counts = run.counts
    return BatchSummary(
        requests=counts.total,
        outcomes=dict(counts.outcomes),
        failed=counts.failed,
        unasked=counts.total - counts.done,
        resumed=counts.resumed,
        calls=books.calls,
        batches=0 if tier is None else tier.batches,
        refusals=counts.refusals,
        refused_rewordings=dict(books.vetoes.most_common()),
        concurrency=run.pace.calls,
        seconds=round(seconds, 3),
        paid_usd=books.paid_usd,
        would_have_cost_usd=None if books.paid_usd is None else books.would_have_cost_usd,
        stopped_by=run.stopped_by,
    )


class _WithoutDeferred(Observers):
    """Passes observations on, but none of requests that wait for a batch.

    These follow with their answers.
    """

    def notify(self, observation: Observation) -> None:
        """Notify all observers."""
        if not (isinstance(observation, Served) and observation.error == InBatch.code):
            super().notify(observation)


@contextmanager
def _stopped_by_signals(run: BatchRun, scope: anyio.CancelScope) -> Iterator[None]:
    """Let calls finish after the first signal, and drop them after the second."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if run.stopped_by == INTERRUPTED:
            scope.cancel()
            return
        run.stop(INTERRUPTED)
        calls = counted(run.in_flight, "call")
        click.echo(f"\nwaiting for {calls}; the next Ctrl-C drops them", err=True)

    # The event loops of Windows take no signals.
    usual = {
        each: signal.signal(each, lambda *_: loop.call_soon_threadsafe(stop))
        for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in usual.items():
            signal.signal(each, handler)


async def _show_progress(run: BatchRun, books: BatchBooks) -> None:
    """Show on the error stream how far the run is."""
    terminal = sys.stderr.isatty()
    marks = deque([(time.monotonic(), run.counts.done)])
    try:
        while True:
            await anyio.sleep(REWRITTEN_S if terminal else LOGGED_S)
            now = time.monotonic()
            marks.append((now, run.counts.done))
            while marks[0][0] < now - RATE_OVER_S:
                marks.popleft()
            since, before = marks[0]
            rate = (run.counts.done - before) / (now - since) if now > since else 0.0
            line = progress_line(run, books.paid_usd, rate)
            if terminal:  # it can rewrite the line only if the line is not wrapped
                line = f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}"
            click.echo(line, nl=not terminal, err=True)
    finally:
        if terminal:
            click.echo("\r\x1b[2K", nl=False, err=True)


def progress_line(run: BatchRun, paid_usd: float | None, rate: float) -> str:
    """Return how far a run is. ``rate`` is the number of requests done in a second."""
    counts = run.counts
    left = counts.total - counts.done
    parts = [f"{counts.done:,} of {counts.total:,}", f"{run.pace.calls} at once"]
    if counts.parts:
        parts.append(f"{counts.parts_done:,} of {counts.parts:,} parts")
    hits = counts.outcomes["exact"] + counts.outcomes["semantic"]
    if hits:
        parts.append(f"{hits:,} from the cache")
    tier = run.tier
    if tier is not None and tier.submitted:
        parts.append(f"{tier.done:,} of {tier.submitted:,} answered in batches of the provider")
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    asked = counts.done - counts.resumed
    if paid_usd and asked:
        parts.append(f"${paid_usd:.2f}, about ${paid_usd * (1 + left / asked):.2f} in all")
    if rate > 0.0:
        parts.append(f"{duration(left / rate)} left")
    return ", ".join(parts)


def summary_text(summary: BatchSummary) -> str:
    """Return the summary as lines of text."""
    outcomes = summary.outcomes
    answered = sum(outcomes.values())
    requests = counted(summary.requests, "request")
    lines = [f"{requests}: {answered:,} answered, {summary.failed:,} failed"]
    if summary.resumed:
        lines[0] += f"; {summary.resumed:,} of them by earlier runs"
    merged = {"exact": "exact repeat", "semantic": "rewording", "joined": "joined call"}
    said = [counted(outcomes[way], name) for way, name in merged.items() if outcomes.get(way)]
    lines.append(f"merged: {', '.join(said) or 'nothing'}")
    if summary.refused_rewordings:
        refused = ", ".join(f"{n:,} {name}" for name, n in summary.refused_rewordings.items())
        lines.append(f"rewordings not merged: {refused}")
    took = duration(summary.seconds)
    if summary.batches:
        batches = counted(summary.batches, "batch", "batches")
        lines.append(f"{counted(summary.calls, 'call')} in {batches} of providers, in {took}")
    else:
        lines.append(
            f"{counted(summary.calls, 'call')} to providers in {took}, at last "
            f"{summary.concurrency} at once; {summary.refusals:,} times a provider said to wait"
        )
    if summary.paid_usd is not None and summary.would_have_cost_usd:
        share = 1 - summary.paid_usd / summary.would_have_cost_usd
        lines.append(
            f"${summary.paid_usd:.4f} paid, ${summary.would_have_cost_usd:.4f} without Headstart: "
            f"saved {share:.0%}"
        )
    if summary.stopped_by is not None:
        lines.append(f"stopped: {summary.stopped_by}")
    if summary.unasked:
        wait = counted(summary.unasked, "request waits", "requests wait")
        lines.append(f"{wait}: the same command goes on")
    elif summary.failed:
        lines.append("their lines say why; the same command asks the failed requests again")
    return "\n".join(lines)
