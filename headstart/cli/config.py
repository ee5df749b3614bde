"""``headstart config``: checks or shows the settings in force, and asks each upstream once.

``--live`` makes one small call to each upstream, to check its key, its model and its speed. The
call takes the same path as every request: the same connection, translation and headers.
"""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import click
import msgspec

from headstart.cli.data_sources import settings_to_read
from headstart.cli.options import command, config_field, flag, json_field, print_json
from headstart.cli.serve import ServeOptions, chosen_settings
from headstart.config.checks import billing_note, listing_note, notes_on, unset_variables
from headstart.config.loading import load_settings
from headstart.config.providers import NO_UPSTREAM, model_at, model_table, price_at, sends_no_bill
from headstart.config.strategies import strategy_of
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.registry import BY_SETTING
from headstart.errors import ConfigError, RequestError, UpstreamError
from headstart.factory.caching import error_limit_of, read_prior
from headstart.factory.context import clock
from headstart.factory.upstreams import cloud_access, open_upstreams
from headstart.interfaces import REDIS_SCHEMES, Upstream
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.policies.match import version_of
from headstart.policies.routing.failures import Failure, FailureKind, classify, failure_of
from headstart.settings import (
    CacheSettings,
    RouteSettings,
    Settings,
    UpstreamSettings,
    masked,
    masked_variable,
)
from headstart.sockets import tls_of
from headstart.types import (
    UNDECODABLE,
    Call,
    ErrorReported,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    is_pattern,
    new_ulid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.reply import Reply
    from headstart.types import Headers


@click.group(epilog="\b\nExample:\n  headstart config check --config headstart.toml")
def config() -> None:
    """Check or show the configuration."""


@dataclass(frozen=True)
class CheckOptions(ServeOptions):
    """The options of the server, and those that only ``headstart config check`` has."""

    wrapped: bool = flag("Check the settings of an app with the middleware: it needs no upstream.")
    live: bool = flag("Ask each upstream for one token (the cost is tiny).")
    as_json: bool = json_field()


@command(CheckOptions, short_help="Find problems in the configuration; --live asks each upstream.")
def check(options: CheckOptions) -> None:
    """Validate settings, the variables and files they name, models and routes.

    It takes the options of `serve`, and checks what the server would use with them: also the
    providers whose key variables are set. A server without an upstream cannot start, so that is a
    problem. The command works offline unless --live is given. It prints each upstream with its key
    variables, the number of its known models and prices, and whether the bill of a call ends when
    the call is cancelled. It prints each route with its upstreams and their models. Then it prints
    notes, which are harmless, and problems. It exits with 1 if there is a problem, and with 2 if it
    cannot read the settings.

    Examples:
      headstart config check --config headstart.toml
      headstart config check --live
      headstart config check --upstream https://api.openai.com/v1
      headstart config check --json | jq .problems
    """
    try:
        found: list[str] = []
        if options.wrapped:
            settings = load_settings(options.config, os.environ)
        else:
            settings, found = chosen_settings(options)
        for upstream in settings.upstream:
            model_table(upstream.price_file)
    except ConfigError as error:
        if options.as_json:
            print_json({"valid": False, "problems": str(error).splitlines()})
        raise
    report, answers = report_on(settings, os.environ), []
    if not settings.upstream and not options.wrapped:
        missing = f"{NO_UPSTREAM} (an app with the middleware needs none: --wrapped)"
        report = msgspec.structs.replace(report, problems=(missing, *report.problems))
    if options.live and not report.problems and settings.upstream:
        answers = anyio.run(ask_all, settings)
        failed = tuple(f"{each.upstream}: {each.error}" for each in answers if each.error)
        report = msgspec.structs.replace(report, problems=failed)
    if options.as_json:
        shown = msgspec.to_builtins(report)
        print_json({"valid": not report.problems, **shown, "live": answers})
    else:
        # The report itself has the notes on the bills of a race.
        for note in (each for each in found if not each.startswith("note: ")):
            click.echo(note)
        _print(report, answers)
    if report.problems:
        raise SystemExit(1)


@dataclass(frozen=True)
class ShowOptions:
    """The options of ``headstart config show``."""

    config: Path | None = config_field()


@command(ShowOptions, short_help="Print the settings in force as JSON, secrets masked.")
def show(options: ShowOptions) -> None:
    """Print the settings in force as JSON, secrets masked and presets filled in.

    Examples:
      headstart config show
    """
    print_json(masked(settings_to_read(options.config)))


config.add_command(check)
config.add_command(show)


def _print(report: ConfigReport, live: Sequence[LiveResult]) -> None:
    for line in tables(report, live):
        click.echo(line)
    for note in report.notes:
        click.echo(f"note: {note}")
    for problem in report.problems:
        click.echo(f"problem: {problem}", err=True)
    if not report.problems:
        click.echo("the configuration is valid")


def start_problems(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons why ``serve`` could not start here, found without starting it."""
    yield from unset_variables(settings, environ)
    for upstream in settings.upstream:
        yield from _problem_in(cloud_access, upstream, environ)
    for read in (_read_certificates, _read_encoder, _read_state, _find_store):
        yield from _problem_in(read, settings)
    yield from _folder_problems(settings)
    yield from _problem_in(_read_encryption_key, settings.cache, environ)


def _problem_in(read: Callable[..., object], *given: object) -> Iterator[str]:
    """Yield the problem that ``read`` finds, if there is one."""
    try:
        read(*given)
    except ConfigError as error:
        yield str(error)


def _read_certificates(settings: Settings) -> None:
    for upstream in settings.upstream:
        tls_of(upstream.name, upstream.ca_file, upstream.client_cert_file)


def _read_encoder(settings: Settings) -> None:
    chosen, cache = settings.encoder, settings.cache
    if not cache.enabled or cache.mode == "exact-only" or chosen.model == "default":
        return
    from headstart.embeddings.encoder import OnnxEncoder

    OnnxEncoder(Path(chosen.model), max_tokens=chosen.max_tokens)


def _read_state(settings: Settings) -> None:
    cache = settings.cache
    read_prior(cache, error_limit_of(cache), version_of(cache.guards))


def _folder_problems(settings: Settings) -> Iterator[str]:
    """Yield the folders in which the server cannot write."""
    folder = Path(settings.record.path).parent
    if settings.record.enabled and not _is_writable(folder):
        yield f"record.path: {folder} is not a folder that can be written to"
    if settings.batches.dir is not None:
        folder = Path(settings.batches.dir)
        # The server makes the folder, and those above it.
        found = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        if not _is_writable(found):
            yield f"batches.dir: {found} is not a folder that can be written to"


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _find_store(settings: Settings) -> None:
    store = settings.cache.store
    scheme, _, path = store.partition(":///")
    if scheme == "sqlite" and (file := Path(path).expanduser()).is_dir():
        raise ConfigError(f"cache.store: {file} is a folder; name a file in it")
    if store.partition(":")[0] in REDIS_SCHEMES:
        from headstart.embeddings.stores.redis_client import connect

        connect(store)  # it reads the URL, and connects on first use


def _read_encryption_key(cache: CacheSettings, environ: Mapping[str, str]) -> None:
    if cache.encryption_key_env is not None:
        from headstart.embeddings.stores.encryption import cipher_of

        # Only the server runs the command.
        cipher_of(msgspec.structs.replace(cache, encryption_key_command=None), environ)


class UpstreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force of one upstream."""

    name: str
    preset: str | None
    dialect: str
    also_speaks: tuple[str, ...]
    base_url: str
    auth: str
    keys: dict[str, bool]
    """Whether each key variable is set; empty if the upstream gets the callers' keys."""
    models: dict[str, str]
    cancels_billing: bool | None
    priced: int
    """The number of models with a known price."""
    all_priced: bool
    """Whether a price holds for every other model, too."""


class RouteReport(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force of one route."""

    name: str
    strategy: str
    """The strategy's name. Nested strategies are written with their members."""
    model: str
    members: dict[str, str]
    """The model that each upstream gets, or the pattern of a route for several models."""


class ConfigReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report. It has all problems that can be found offline."""

    upstreams: tuple[UpstreamReport, ...]
    routes: tuple[RouteReport, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    listing: str = ""
    """The answer to ``GET /v1/models``."""


def report_on(settings: Settings, environ: Mapping[str, str]) -> ConfigReport:
    """Return the report, without asking an upstream."""
    by_name = {upstream.name: upstream for upstream in settings.upstream}
    notes = list(notes_on(settings))
    for route in settings.route:
        notes += [f"route {route.name!r}: {note}" for note in _notes(route, by_name)]
    return ConfigReport(
        upstreams=tuple(_upstream(each, environ) for each in settings.upstream),
        routes=tuple(_route(each, by_name) for each in settings.route),
        notes=tuple(dict.fromkeys(notes)),
        problems=tuple(start_problems(settings, environ)),
        listing=listing_note(settings),
    )


def _upstream(upstream: UpstreamSettings, environ: Mapping[str, str]) -> UpstreamReport:
    return UpstreamReport(
        name=upstream.name,
        preset=upstream.preset,
        dialect=upstream.speaks,
        also_speaks=upstream.further,
        base_url=_address(upstream, environ),
        keys={masked_variable(each): bool(environ.get(each)) for each in upstream.key_variables},
        auth=upstream.auth or "key",
        models=upstream.models,
        cancels_billing=upstream.cancels_billing,
        priced=sum(price_at(upstream, real) is not None for real in set(upstream.models.values())),
        all_priced=price_at(upstream, "") is not None,
    )


def _address(upstream: UpstreamSettings, environ: Mapping[str, str]) -> str:
    """Return the address with its region and project, if they are known."""
    try:
        return cloud_access(upstream, environ).settings.base_url
    except ConfigError:
        return upstream.base_url


def _route(route: RouteSettings, by_name: Mapping[str, UpstreamSettings]) -> RouteReport:
    strategy, model = strategy_of(route), route.match.model
    asked = {
        name: model if is_pattern(model) else model_at(by_name[name], model)
        for name in strategy.members
    }
    kind = strategy.composition if strategy.nested else strategy.strategy
    if not strategy.upstreams:
        kind = "by model"
    return RouteReport(name=route.name, strategy=kind, model=model, members=asked)


def _notes(route: RouteSettings, by_name: Mapping[str, UpstreamSettings]) -> Iterator[str]:
    """Yield notes on a valid route whose settings change its cost or its answers."""
    strategy, model = strategy_of(route), route.match.model
    compares = "cheapest(" in strategy.composition
    members = [by_name[name] for name in strategy.members]
    for upstream in members:
        if not is_pattern(model):
            yield from _model_notes(upstream, model_at(upstream, model), compares=compares)
        elif compares and not _has_prices(upstream):
            yield (
                f"no price of a model at {upstream.name} is known, so cheapest cannot compare it; "
                "set its price"
            )
    if strategy.race_billed and len(members) > 1:
        yield from filter(None, map(billing_note, members))


def _model_notes(upstream: UpstreamSettings, model: str, *, compares: bool) -> Iterator[str]:
    weights = model_table().weights(model, upstream.preset)
    if price_at(upstream, model) is None:
        last = ", and cheapest cannot compare it" if compares else ""
        yield (
            f"no price is known of {model!r} at {upstream.name}, so its cost is not booked{last}; "
            "set its price"
        )
    if weights is None and upstream.preset is not None:
        yield f"it is not known that {upstream.name} has a model {model!r}"
    elif weights is not None and upstream.preset in weights.quantised:
        yield f"{upstream.name} serves {model!r} quantised"


def _has_prices(upstream: UpstreamSettings) -> bool:
    if upstream.price or upstream.preset is None:
        return bool(upstream.price)
    table = model_table(upstream.price_file)
    return bool(table.priced_at(upstream.preset)) or table.price(upstream.preset, "") is not None


def tables(report: ConfigReport, live: Sequence[LiveResult]) -> Iterator[str]:
    """Yield the report's lines: upstreams, routes, and the answers to live calls."""
    if report.upstreams:
        yield from _table(
            ("upstream", "dialect", "address", "key", "models", "priced", "cancel ends bill"),
            [
                (
                    each.name,
                    ", ".join((each.dialect, *each.also_speaks)),
                    each.base_url,
                    _keys(each),
                    str(len(set(each.models.values()))),
                    "all" if each.all_priced else str(each.priced),
                    {True: "yes", False: "no", None: "unknown"}[each.cancels_billing],
                )
                for each in report.upstreams
            ],
        )
    if report.routes:
        yield from _table(
            ("route", "strategy", "model", "upstreams"),
            [(each.name, each.strategy, each.model, _members(each)) for each in report.routes],
        )
    if report.listing:
        yield report.listing
    if live:
        yield from _table(
            ("asked", "model", "first token", "answer"),
            [
                (
                    each.upstream,
                    each.model or "-",
                    "-" if each.ttft_s is None else f"{each.ttft_s * 1000:,.0f} ms",
                    each.error or "ok",
                )
                for each in live
            ],
        )
        for each in live:
            if each.models:
                yield f"{each.upstream} offers: {', '.join(each.models)}"


def _keys(report: UpstreamReport) -> str:
    if report.auth != "key" and not report.keys:
        return f"of {report.auth}"
    shown = (name if found else f"{name} (not set)" for name, found in report.keys.items())
    return ", ".join(shown) or "callers'"


def _members(route: RouteReport) -> str:
    named = (
        name if real == route.model else f"{name} ({real})" for name, real in route.members.items()
    )
    return ", ".join(named) or "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield ""


# --- one small call to each upstream (``--live``) -------------------------------------------------

LIMIT_S = 10.0
"""Seconds for one upstream, with the list of its models."""
_SHOWN = 5
"""Most models of an upstream that are shown."""
_LIST_BYTES = 4 * 1024 * 1024
_WORDS_BYTES = 1024
_CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, Finished)
_OTHER_CALLS: Mapping[bytes, dict[str, Any]] = {
    b"/v1/embeddings": {"input": ["Hi"]},
    b"/v1/rerank": {"query": "Hi", "documents": ["Hi"]},
}
"""What a model that cannot chat is asked for."""
_HEADERS: Headers = ((b"content-type", b"application/json"),)
_NO_MODEL = FailureKind.NO_SUCH_MODEL
_WITHOUT_LIST = (_NO_MODEL, FailureKind.BAD_REQUEST, FailureKind.SERVER)
"""The failures of an upstream that does not have the path of the list, or is not a provider."""


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one upstream."""

    upstream: str
    model: str | None
    ttft_s: float | None = None
    error: str | None = None
    """The kind of the failure and the provider's message; None: it answered."""
    models: tuple[str, ...] = ()
    """Some models of the upstream, if it does not know the requested model."""


class _Failure(NamedTuple):
    """Why an upstream gave no answer."""

    kind: FailureKind
    words: str
    """The provider's message."""
    fix: str = ""

    @property
    def line(self) -> str:
        """The failure in one short line."""
        return f"{self.kind}: {' '.join(self.words.split())[:200]}{self.fix}"


class _ModelList(NamedTuple):
    """The models that an upstream lists, and why it lists none, if it says so."""

    models: tuple[str, ...] = ()
    failure: _Failure | None = None


async def ask_all(settings: Settings) -> list[LiveResult]:
    """Ask all upstreams at the same time; return the results in the order of the settings."""
    results: dict[str, LiveResult] = {}

    async def ask(upstream: Upstream, chosen: UpstreamSettings) -> None:
        results[chosen.name] = await ask_one(upstream, chosen, model_for(chosen, settings))

    async with AsyncExitStack() as stack:
        opened = await open_upstreams(settings, UpstreamStates(), stack)
        async with anyio.create_task_group() as group:
            for each in opened:
                group.start_soon(ask, each.http, each.settings)
    return [results[each.name] for each in settings.upstream]


def model_for(upstream: UpstreamSettings, settings: Settings) -> str | None:
    """Return the model to ask for: a route's, else one of the user's aliases, else the cheapest.

    A server of your own offers what was loaded into it: its list alone can tell.
    """
    for route in settings.route:
        pattern = route.match.model
        if upstream.name in strategy_of(route).members and not is_pattern(pattern):
            return model_at(upstream, pattern)
    known = model_table().names_at(upstream.preset or "")
    own = [real for alias, real in upstream.models.items() if known.get(alias) != real]
    if own or sends_no_bill(upstream):
        return next(iter(own), None)
    return model_table().cheapest(upstream.preset or "")


async def ask_one(upstream: Upstream, chosen: UpstreamSettings, model: str | None) -> LiveResult:
    """Ask for one token of ``model``, or of the first that is listed. Errors are results.

    A model that cannot chat, but embeds or ranks texts, has no first token and no error.
    """
    listed = _ModelList()
    outcome: float | _Failure | None
    outcome = _Failure(FailureKind.TIMEOUT, f"no answer within {LIMIT_S:g} s")
    with anyio.move_on_after(LIMIT_S):
        try:
            if model is None:
                listed = await _list_models(upstream, chosen.speaks)
                model = _model_of(listed, chosen)
            if model is None:
                unknown = _Failure(_NO_MODEL, "none is known; set one in upstream.models")
                outcome = listed.failure or unknown
            else:
                outcome = await _first_token(upstream, model)
            if isinstance(outcome, _Failure) and outcome.kind is _NO_MODEL:
                if not listed.models:
                    listed = await _list_models(upstream, chosen.speaks)
                if model in listed.models and await _answers_other_calls(upstream, model):
                    outcome = None
        except UpstreamError as failed:
            outcome = _Failure(failure_of(failed, clock()).kind, str(failed))
        except RequestError as inexpressible:  # in the upstream's dialect
            outcome = _Failure(FailureKind.BAD_REQUEST, str(inexpressible))
    if isinstance(outcome, _Failure):
        shown = listed.models[:_SHOWN]
        return LiveResult(upstream=chosen.name, model=model, error=outcome.line, models=shown)
    return LiveResult(upstream=chosen.name, model=model, ttft_s=outcome)


def _model_of(listed: _ModelList, upstream: UpstreamSettings) -> str | None:
    """Return the first listed model; without a list, the cheapest one of the preset."""
    if listed.models:
        return listed.models[0]
    # A proxy of your own before the preset's provider may have no list.
    has_no_list = listed.failure is None or listed.failure.kind is _NO_MODEL
    return model_table().cheapest(upstream.preset or "") if has_no_list else None


async def _first_token(upstream: Upstream, model: str) -> float | _Failure:
    """Return the time to the first token, or why there was none. Raises UpstreamError."""
    call = chat_call("check", model, [{"role": "user", "content": "Hi"}], max_tokens=1)
    began = time.perf_counter()
    async with await upstream.send(call) as reply:
        async for piece in reply.pieces:
            for event in piece.events:
                if isinstance(event, ErrorReported):
                    return _Failure(failure_in(event, reply).kind, event.message)
                only_begins = isinstance(event, TextDelta) and not event.text
                if isinstance(event, _CONTENT) and not only_begins:
                    return time.perf_counter() - began
    kind = FailureKind.EMPTY if reply.status < 400 else FailureKind.SERVER
    return _Failure(kind, f"status {reply.status} without an answer")


def failure_in(event: ErrorReported, reply: Reply) -> Failure:
    """Judge an error that a provider reported in its answer."""
    status, headers = event.status or reply.status, reply.headers
    return classify(status, (event.code or "",), event.message, headers, clock())


async def _list_models(upstream: Upstream, dialect: str) -> _ModelList:
    """Ask an upstream for its list of models. Raises UpstreamError."""
    form = BY_SETTING[dialect].models
    if form is None:
        return _ModelList()
    status, headers, body = await _ask(upstream, form.path, query=form.query)
    if status >= 400:
        words = body[:_WORDS_BYTES].decode(errors="replace").strip()
        kind = classify(status, (), words, headers, clock()).kind
        said = "an HTML page" if words.startswith("<") else words
        fix = "; is upstream.base_url right? Without a list, set a model in upstream.models"
        words = f"its list of models has status {status}: {said}"
        return _ModelList((), _Failure(kind, words, fix if kind in _WITHOUT_LIST else ""))
    try:
        return _ModelList(tuple(each.id for each in form.read(msgspec.json.decode(body))))
    except UNDECODABLE:
        return _ModelList()


async def _answers_other_calls(upstream: Upstream, model: str) -> bool:
    """Tell whether a model embeds or ranks texts. Raises UpstreamError."""
    for path, fields in _OTHER_CALLS.items():
        status, _, _ = await _ask(upstream, path, msgspec.json.encode({"model": model, **fields}))
        if status == 200:
            return True
    return False


async def _ask(
    upstream: Upstream, path: bytes, body: bytes = b"", *, query: bytes = b""
) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of the answer to a call that is not a chat.

    An answer that is too long is empty. Raises UpstreamError.
    """
    call = Call(
        id=new_ulid(clock),
        method="POST" if body else "GET",
        path=path,
        query_string=query,
        headers=_HEADERS if body else (),
        body=body,
        dialect="",
        endpoint="check",
    )
    whole = b""
    async with await upstream.send(call) as reply:
        async for piece in reply.pieces:
            whole += piece.data
            if len(whole) > _LIST_BYTES:
                return reply.status, reply.headers, b""
    return reply.status, reply.headers, whole


def chat_call(
    endpoint: str, model: str, messages: Sequence[Any], max_tokens: int, **fields: Any
) -> Call:
    """Return a streamed chat in OpenAI's dialect; ``endpoint`` names its purpose in the books."""
    document = {
        "model": model,
        "messages": messages,
        "max_completion_tokens": max_tokens,
        "stream": True,
        **fields,
    }
    body = msgspec.json.encode(document)
    return Call(
        id=new_ulid(clock),
        method="POST",
        path=b"/v1/chat/completions",
        query_string=b"",
        headers=_HEADERS,
        body=body,
        dialect=OPENAI_CHAT.name,
        endpoint=endpoint,
        request=OPENAI_CHAT.parse_request(body),
    )
