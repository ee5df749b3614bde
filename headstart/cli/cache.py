"""``headstart cache``: look at a store, move it, delete from it, and warm a running server.

With ``headstart cache import --answers`` the answers of a request log become entries.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import aiohttp
import anyio
import click
import msgspec

from headstart.cli import data_sources
from headstart.cli.options import (
    COUNT,
    FILE,
    INPUT,
    OLD_FILE,
    argument,
    command,
    config_field,
    flag,
    json_field,
    option,
    parse_duration,
    print_json,
    store_field,
    url_field,
)
from headstart.decisions import Label  # noqa: TC001 - msgspec reads it
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.registry import DIALECTS
from headstart.errors import ConfigError, HeadstartError
from headstart.factory import start_engine
from headstart.factory.caching import store_cipher
from headstart.middleware.learning.certificates import all_labels
from headstart.middleware.observers import Observers
from headstart.middleware.pump import LoggedAnswer
from headstart.report.sections import counted
from headstart.settings import CacheSettings, Settings, masked_url
from headstart.sockets import client_session
from headstart.types import UNDECODABLE, Delete, Entry, EntryFilter, Frozen, Headers, Put, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Store


async def import_answers(
    settings: Settings, lines: list[bytes], headers: Headers, progress: Callable[[int], None]
) -> Counter[str]:
    """Store the answers in the lines of a log as a server with these settings would.

    ``headers`` are the headers of the callers who will get them. Returns how many answers were
    ``stored``, and how many were left out for each reason. Raises ConfigError.
    """
    outcomes = Counter[str]()
    running = await start_engine(settings, Observers(), wrapped=False)
    try:
        log = running.engine.answer_log()
        if log is None:
            raise ConfigError("cache.enabled: with the cache off, no answer is stored")
        for call in read_calls(lines):
            logged = None if call is None else _logged(call, headers)
            outcome = "no-call" if logged is None else await log.keep(logged)
            outcomes[outcome or "stored"] += 1
            progress(outcomes.total())
    finally:
        await running.aclose()
    return outcomes


def read_calls(lines: Iterable[bytes]) -> Iterator[data_sources.LogLine | None]:
    """Yield the calls of a log; None for a line that holds none, or no answer. Skip empty lines."""
    for line, read in zip(lines, data_sources.as_log_lines(lines), strict=True):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(read, type=data_sources.LogLine)
        except UNDECODABLE:
            yield None


def _logged(call: data_sources.LogLine, headers: Headers) -> LoggedAnswer | None:
    bodies, dialect = call.bodies(), _dialect(call)
    if bodies is None or dialect is None:
        return None
    request, response = bodies
    return LoggedAnswer(
        dialect=dialect,
        path=dialect.paths[0],
        headers=headers,
        request=msgspec.json.encode(request),
        response=msgspec.json.encode(response),
        at=time.time() if call.at is None else call.at,  # noqa: TID251 - the composition root
    )


def _dialect(call: data_sources.LogLine) -> Dialect | None:
    """Return the dialect of a call, if its path does not depend on the request."""
    named = OPENAI_CHAT if call.dialect is None else DIALECTS.get(call.dialect)
    return named if named is not None and named.paths else None


FORMAT = 1
AT_ONCE = 256
"""Entries or labels that are read or written together."""


@click.group(epilog="\b\nExample:\n  headstart cache stats")
def cache() -> None:
    """Count, export, import, delete and prepare the answers of a store."""


def _progress(done: str, *, last: bool = False) -> None:
    """Show how far a command is, on a terminal in one line; else only at the end."""
    if sys.stderr.isatty():
        click.echo(f"\r{done}", nl=last, err=True)
    elif last:
        click.echo(done, err=True)


def _entries(number: int) -> str:
    return counted(number, "entry", "entries")


# --- stats ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatsOptions:
    """The options of ``headstart cache stats``."""

    config: Path | None = config_field()
    store: str | None = store_field()
    as_json: bool = json_field()


class StoreSummary(Frozen, omit_defaults=False):
    """The contents of a store, in numbers. Times are in Unix seconds."""

    entries: int
    bytes: int
    labels: int
    oldest: float | None
    newest: float | None
    models: dict[str, int]
    tags: dict[str, int]
    scopes: int


@command(StatsOptions)
def stats(options: StatsOptions) -> None:
    """Count the entries and labels of a store, by model and tag.

    Examples:
      headstart cache stats
      headstart cache stats --store redis://127.0.0.1:6379/0 --json
    """
    found = anyio.run(_summarise, options.store, options.config)
    if options.as_json:
        print_json(found)
        return
    click.echo(
        f"{counted(found.entries, 'entry', 'entries')} of "
        f"{counted(found.scopes, 'scope')}, {found.bytes / 1e6:,.1f} MB, "
        f"{counted(found.labels, 'label')}"
    )
    if found.oldest is not None and found.newest is not None:
        now = time.time()  # noqa: TID251 - the composition root
        oldest, newest = _age(now - found.oldest), _age(now - found.newest)
        click.echo(f"  {newest} old" if newest == oldest else f"  {newest} to {oldest} old")
    for title, counts in (("model", found.models), ("tag", found.tags)):
        for name, number in sorted(counts.items(), key=lambda item: -item[1])[:20]:
            click.echo(f"  {title:6} {name or '(none)'}: {number:,}")


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} seconds"


async def _summarise(url: str | None, config: Path | None) -> StoreSummary:
    models, tags, scopes = Counter[str](), Counter[str](), set[str]()
    oldest = newest = None
    async with data_sources.existing_store(url, config) as store:
        size = await store.stats()
        async for entries in store.entries():
            for entry in entries:
                models[entry.origin.model] += 1
                tags.update(entry.tags)
                scopes.add(entry.key.scope)
                oldest = entry.created if oldest is None else min(oldest, entry.created)
                newest = entry.created if newest is None else max(newest, entry.created)
        labels = sum([1 async for _ in all_labels(store)])
    return StoreSummary(
        entries=size.entries,
        bytes=size.bytes,
        labels=labels,
        oldest=oldest,
        newest=newest,
        models=dict(models),
        tags=dict(tags),
        scopes=len(scopes),
    )


# --- export and import ----------------------------------------------------------------------


class _Head(Frozen, tag="headstart"):
    """The first line of an export."""

    format: int
    secret: bytes
    """The secret of the store. The names of scopes and the keys of entries depend on it."""


class _Labelled(Frozen, tag="label"):
    """A label."""

    label: Label


_Line = _Head | Put | _Labelled


@dataclass(frozen=True)
class CacheExportOptions:
    """The options of ``headstart cache export``."""

    file: Path = argument("FILE", FILE)
    config: Path | None = config_field()
    store: str | None = store_field()


@command(CacheExportOptions, short_help="Write the entries and labels to a file.")
def export(options: CacheExportOptions) -> None:
    """Write the entries and labels of a store to FILE, for `headstart cache import`.

    FILE gets one JSON object per line, with questions and answers in the clear and the store's
    secret; only its owner may read it. `-` is the standard output. A server may use the store
    meanwhile.

    Examples:
      headstart cache export cache.jsonl
      headstart cache export cache.jsonl --store sqlite:///headstart.db
    """
    if str(options.file) == "-":
        entries, labels = anyio.run(_export, options.store, options.config, sys.stdout.buffer)
        click.echo(f"{_counted(entries, labels)} were written", err=True)
        return
    try:
        descriptor = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"{options.file} cannot be made: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            entries, labels = anyio.run(_export, options.store, options.config, file)
    except BaseException as error:
        options.file.unlink()  # an incomplete export must not look like a complete one
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(options.file)  # the disk is full
        raise
    click.echo(f"{_counted(entries, labels)} were written to {options.file}")


def _counted(entries: int, labels: int) -> str:
    return f"{counted(entries, 'entry', 'entries')} and {counted(labels, 'label')}"


async def _export(url: str | None, config: Path | None, file: IO[bytes]) -> tuple[int, int]:
    def write(line: _Line) -> None:
        file.write(msgspec.json.encode(line) + b"\n")

    entries = labels = 0
    async with data_sources.existing_store(url, config) as store:
        write(_Head(format=FORMAT, secret=await store.secret()))
        vectors: dict[str, VectorRow] = {}
        async for rows in store.scan():
            vectors.update((row.id, row) for row in rows)
        async for page in store.entries():
            for entry in page:
                write(_put(entry, vectors.pop(entry.id, None)))
            entries += len(page)
            _progress(_entries(entries))
        async for label in all_labels(store):
            write(_Labelled(label=label))
            labels += 1
    _progress(_entries(entries), last=True)
    return entries, labels


def _put(entry: Entry, row: VectorRow | None) -> Put:
    if row is None:
        return Put(entry=entry)
    return Put(entry=entry, vector=row.vector, sketch=row.sketch)


@dataclass(frozen=True)
class CacheImportOptions:
    """The options of ``headstart cache import``."""

    file: Path = argument("FILE", INPUT)
    answers: bool = flag("FILE is a log of requests: store its answers.")
    key_env: str | None = option(
        None,
        "With --answers, variable with a key: callers with this key get the answers.",
        metavar="NAME",
    )
    upstream: str | None = option(
        None, "With --answers, the URL that the server got as --upstream.", metavar="URL"
    )
    config: Path | None = config_field()
    store: str | None = store_field()


@command(CacheImportOptions, short_help="Read an export, or the answers of a log.")
def import_(options: CacheImportOptions) -> None:
    """Read FILE, which `headstart cache export` wrote, into a store.

    `-` is the standard input.
    A new store takes over the secret of the old one: the names of callers depend on it. Into a
    store that has another secret nothing is imported, because no caller could find the entries.
    Entries that have expired meanwhile, or that the store has already, are left out.

    With --answers FILE is a log of LiteLLM, Langfuse, Helicone, or in the form of OpenAI's chat
    completions. Its answers become entries, as if they had come from upstream at the time in the
    log. They get the same keys, follow the same rules about what may be stored, and expire at the
    same time.

    Examples:
      headstart cache import cache.jsonl --store redis://127.0.0.1:6379/0
      headstart cache import litellm.jsonl --answers --key-env OPENAI_API_KEY
    """
    if options.answers:
        if str(options.file) == "-":
            raise click.UsageError("--answers reads a file, not the standard input")
        _import_answers(options)
        return
    settings = data_sources.settings_to_read(options.config).cache
    url = options.store or settings.store
    if url == "memory:":
        raise ConfigError(NOT_IN_MEMORY)
    with click.open_file(options.file, "rb") as file:
        entries, known, labels = anyio.run(_import, url, settings, file)
    click.echo(
        f"{_entries(entries)} and {counted(labels, 'label')} were read into {masked_url(url)}; "
        f"{counted(known, 'entry was', 'entries were')} left out"
    )


def _import_answers(options: CacheImportOptions) -> None:
    from headstart.cli.serve import ServeOptions, chosen_settings

    chosen = ServeOptions(config=options.config, store=options.store, upstream=options.upstream)
    settings, _ = chosen_settings(chosen)
    if settings.cache.store == "memory:":
        raise ConfigError(NOT_IN_MEMORY)
    headers: Headers = ((b"content-type", b"application/json"),)
    if options.key_env is not None:
        key = data_sources.bearer_key(options.key_env)
        headers = (*headers, (b"authorization", key.encode()))
    lines = data_sources.lines_of(options.file)
    outcomes = anyio.run(
        import_answers, settings, lines, headers, lambda read: _progress(counted(read, "call"))
    )
    _progress(counted(outcomes.total(), "call"), last=True)
    stored = outcomes.pop("stored", 0)
    answers = counted(stored, "answer was", "answers were")
    click.echo(f"{answers} stored in {masked_url(settings.cache.store)}")
    for reason, number in outcomes.most_common():
        click.echo(f"  {number:,} left out: {reason}")


NO_EXPORT = (
    "the file was not written by: headstart cache export; if it is a log of requests, add --answers"
)
NOT_IN_MEMORY = "cache.store: a store in memory ends with its server"


async def _import(url: str, settings: CacheSettings, file: IO[bytes]) -> tuple[int, int, int]:
    from headstart.embeddings.stores.store_urls import open_store

    lines = _read(file)
    head = next(lines, None)
    if not isinstance(head, _Head) or head.format != FORMAT:
        raise ConfigError(NO_EXPORT)
    entries = known = labels = 0
    store = open_store(url, new_secret=head.secret, cipher=store_cipher(settings))
    await store.open()
    try:
        if await store.secret() != head.secret:
            raise ConfigError(
                "cache.store: this store has another secret, so no caller would find the entries; "
                "name a store that does not exist yet"
            )
        had = {_identity(label) async for label in all_labels(store)}
        for puts, read in _batches(lines):
            fresh = await _fresh(store, puts)
            if fresh:
                await store.append(fresh)
            learned = [label for label in read if _identity(label) not in had]
            if learned:
                await store.add_labels(learned)
            entries += len(fresh)
            known += len(puts) - len(fresh)
            labels += len(learned)
            _progress(_entries(entries + known))
    finally:
        await store.aclose()
    _progress(_entries(entries + known), last=True)
    return entries, known, labels


def _identity(label: Label) -> tuple[object, ...]:
    """Return the values that identify a label. A label that is stored twice would count twice."""
    return label.id, label.entry, label.source, label.at


def _read(file: IO[bytes]) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(file, 1):
        try:
            yield decoder.decode(line)
        except UNDECODABLE as error:
            if number == 1:
                raise ConfigError(NO_EXPORT) from error
            raise ConfigError(f"line {number} of the file cannot be read: {error}") from error


def _batches(lines: Iterator[_Line]) -> Iterator[tuple[list[Put], list[Label]]]:
    puts: list[Put] = []
    labels: list[Label] = []
    for line in lines:
        if isinstance(line, Put):
            puts.append(line)
        elif isinstance(line, _Labelled):
            labels.append(line.label)
        if len(puts) + len(labels) >= AT_ONCE:
            yield puts, labels
            puts, labels = [], []
    yield puts, labels


async def _fresh(store: Store, puts: list[Put]) -> list[Put]:
    """Return the live entries that the store does not have, also not under another id."""
    now = time.time()  # noqa: TID251 - the composition root
    fresh = []
    for put in puts:
        lives = put.entry.expires is None or put.entry.expires > now
        if lives and await store.find(put.entry.key.exact) is None:
            fresh.append(put)
    return fresh


# --- invalidate -----------------------------------------------------------------------------


@dataclass(frozen=True)
class InvalidateOptions:
    """The options of ``headstart cache invalidate``."""

    id: tuple[str, ...] = option((), "Entries with this id.", metavar="ID", multiple=True)
    tag: str | None = option(None, "Entries with this tag.", metavar="TAG")
    model: str | None = option(None, "Entries of this model.", metavar="NAME")
    scope: str | None = option(None, "First hex digits of a scope.", metavar="HEX")
    partition: str | None = option(None, "First hex digits of a partition.", metavar="HEX")
    prefix: str | None = option(
        None, "Entries whose question begins with this text.", metavar="TEXT"
    )
    older: str | None = option(
        None, "Entries older than 90s, 30m, 12h, 7d or 2w.", metavar="DURATION"
    )
    all: bool = flag("All entries.")
    dry_run: bool = flag("Count the entries, and delete nothing.")
    config: Path | None = config_field()
    store: str | None = store_field()


@command(InvalidateOptions, short_help="Delete entries, also from running servers.")
def invalidate(options: InvalidateOptions) -> None:
    """Delete the entries that fit all given options, also from running servers.

    A server that uses the store notices it within a second.

    Examples:
      headstart cache invalidate --tag manual-v1
      headstart cache invalidate --model gpt-4o --older 7d --dry-run
    """
    age_s = None if options.older is None else parse_duration(options.older)
    chosen = EntryFilter(
        ids=options.id,
        tag=options.tag or None,
        model=options.model or None,
        scope=options.scope or None,
        partition=options.partition or None,
        prefix=options.prefix or None,
        before=None if age_s is None else time.time() - age_s,  # noqa: TID251 - the composition root
    )
    if chosen.is_empty and not options.all:
        raise click.UsageError("say which entries: --id, --tag, --model, …, or --all")
    deleted = anyio.run(_invalidate, options.store, options.config, chosen, options.dry_run)
    verb = "would be" if options.dry_run else "was" if deleted == 1 else "were"
    click.echo(f"{_entries(deleted)} {verb} deleted")


async def _invalidate(
    url: str | None, config: Path | None, chosen: EntryFilter, dry_run: bool
) -> int:
    deleted = 0
    async with data_sources.existing_store(url, config) as store:
        ids = [entry.id async for page in store.entries() for entry in page if chosen.fits(entry)]
        for start in range(0, len(ids), AT_ONCE):
            batch = tuple(ids[start : start + AT_ONCE])
            if not dry_run:
                await store.append([Delete(ids=batch)])
            deleted += len(batch)
            _progress(_entries(deleted))
    _progress(_entries(deleted), last=True)
    return deleted


# --- warm -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarmOptions:
    """The options of ``headstart cache warm``."""

    file: Path = argument("FILE", OLD_FILE)
    url: str | None = url_field()
    config: Path | None = config_field()
    path: str = option("/v1/chat/completions", "Path of the requests.", metavar="PATH")
    key_env: str | None = option(
        None, "Variable with the key to send: callers with it get the answers.", metavar="NAME"
    )
    concurrency: int = option(4, "Requests at the same time.", COUNT)


@command(WarmOptions, short_help="Send the requests of a file to a server.")
def warm(options: WarmOptions) -> None:
    """Send the requests of FILE to a running server, so that it has their answers later.

    FILE has one JSON object per line: a request body, or a line of a log (Headstart's record,
    LiteLLM, Langfuse, Helicone). For answers that the server does not have, it asks the provider,
    at the usual price. Send the requests with the key of the callers who should get the answers,
    unless all callers share.

    Examples:
      headstart cache warm questions.jsonl --key-env OPENAI_API_KEY
      headstart cache warm headstart-record-2026-11-21.jsonl --concurrency 16
    """
    bodies = list(_bodies(options.file))
    outcomes, reasons = anyio.run(_warm, options, bodies)
    for name, number in sorted(outcomes.items()):
        click.echo(f"{number:,} {name.lower()}")
    if reasons:
        most = "" if len(reasons) == 1 else "most of them: "
        raise HeadstartError(
            f"{reasons.total():,} of {len(bodies):,} requests failed; "
            f"{most}{reasons.most_common(1)[0][0]}"
        )


def _bodies(file: Path) -> Iterator[bytes]:
    """Yield the request bodies of a file. Raises ConfigError."""
    for number, line in enumerate(data_sources.as_log_lines(data_sources.lines_of(file)), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except UNDECODABLE as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
        if number == 1 and row.get("type") == "headstart":
            raise ConfigError(f"{file} was written by headstart cache export: use cache import")
        asked = row.get("request", row)
        request = data_sources.body_of(asked) if isinstance(asked, dict) else None
        if request is None:
            raise ConfigError(f"{file}, line {number}: it has no request")
        yield msgspec.json.encode(request)


async def _warm(options: WarmOptions, bodies: list[bytes]) -> tuple[Counter[str], Counter[str]]:
    """Return how many requests were answered in each way, and how many failed for each reason."""
    outcomes, reasons = Counter[str](), Counter[str]()
    waiting = iter(bodies)

    async def send(session: aiohttp.ClientSession) -> None:
        for body in waiting:
            try:
                outcomes[await _ask(session, options.path, body)] += 1
            except HeadstartError as error:
                reasons[str(error)] += 1
            done = outcomes.total() + reasons.total()
            _progress(f"{done:,} of {counted(len(bodies), 'request')}")

    async with _session(options) as session, anyio.create_task_group() as senders:
        for _ in range(min(options.concurrency, len(bodies))):
            senders.start_soon(send, session)
    _progress(f"{len(bodies):,} of {counted(len(bodies), 'request')}", last=True)
    return outcomes, reasons


@asynccontextmanager
async def _session(options: WarmOptions) -> AsyncIterator[aiohttp.ClientSession]:
    url = data_sources.running_server(options.url, data_sources.ADMIN_TOKEN_ENV, options.config).url
    headers = {"content-type": "application/json"}
    if options.key_env is not None:
        headers["authorization"] = data_sources.bearer_key(options.key_env)
    timeout = aiohttp.ClientTimeout(total=600.0)
    async with client_session(url, headers=headers, timeout=timeout) as session:
        yield session


async def _ask(session: aiohttp.ClientSession, path: str, body: bytes) -> str:
    """Send one request; return how it was answered. Raises HeadstartError."""
    try:
        async with session.post(path, data=body) as response:
            answer = await response.read()
    except aiohttp.ClientConnectorError as error:
        raise HeadstartError(f"the server {data_sources.unreachable(error)}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HeadstartError(str(error) or type(error).__name__) from error
    if response.status != 200:
        why = data_sources.message_of(answer)
        raise HeadstartError(f"status {response.status}{f': {why}' if why else ''}")
    return response.headers.get("x-cache", "answered without a cache")


for each in (stats, export, invalidate, warm):
    cache.add_command(each)
cache.add_command(import_, "import")
