"""``headstart watch``: measure providers on a schedule, and report when one becomes worse."""

from __future__ import annotations

import difflib
import json
import re
import time
import tomllib
from dataclasses import InitVar, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import anyio
import click
import msgspec

from headstart.attempts import Tokens
from headstart.cli.data_sources import decode_lines
from headstart.cli.options import (
    ABOVE_ZERO,
    COUNT,
    FILE,
    OLD_FILE,
    command,
    config_field,
    flag,
    json_field,
    option,
    parse_duration,
)
from headstart.config.providers import sends_no_bill
from headstart.errors import ConfigError
from headstart.factory.upstreams import metered_price
from headstart.lab.bench import Recommendation, Sample, Subject, recommend
from headstart.lab.commands.bench import PROMPTS_HELP, read_bench_prompts
from headstart.lab.commands.bench_calls import BenchPlan, BenchTarget, measure, open_configured
from headstart.lab.commands.tune import set_keys
from headstart.lab.quality import FIGURES, DriftAlarm, Round, Watch, limit_for, round_of, spent_usd
from headstart.sockets import client_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.policies.cost import Price

DAY_S = 86_400.0
KEPT_S = 60 * DAY_S
"""Age in seconds of the oldest rounds that are read from the history."""
RECENT = 5
"""Number of the last rounds of each provider that a proposal uses."""
CHARACTERS = 3
"""Fewest characters of a prompt token, so that the budget is not exceeded."""
_ROUTE = re.compile(r"^\s*\[\[\s*route\s*\]\]")
_TABLE = re.compile(r"^\s*\[(?!\[?\s*route\s*\.)")
_WEBHOOK_S = 10.0


@dataclass(frozen=True)
class WatchOptions:
    """The options of ``headstart watch``."""

    path: Path | None = config_field()
    upstream: tuple[str, ...] = option(
        (), "Watch only this upstream; may be given again.", multiple=True
    )
    model: tuple[str, ...] = option((), "Model to ask for; may be given again.", multiple=True)
    prompts: Path | None = option(None, PROMPTS_HELP, OLD_FILE)
    every: str = option("1h", "Time between two rounds: 10m, 1h, 1d.", metavar="DURATION")
    budget: float = option(1.0, "Most dollars per day.", ABOVE_ZERO)
    calls: int = option(8, "Calls of a round, of each provider and model.", COUNT)
    max_tokens: int = option(64, "Longest answer; a prompt may ask for less.", COUNT)
    timeout: float = option(60, "Seconds until a call counts as failed.", ABOVE_ZERO)
    history: Path = option(Path("watch.jsonl"), "File that keeps the rounds.", FILE)
    webhook: str | None = option(None, "Post alarms to this URL, as JSON.", metavar="URL")
    once: bool = flag("Measure one round, and exit with 3 if it raises an alarm.")
    as_json: bool = json_field()


@command(WatchOptions)
def watch(options: WatchOptions) -> None:
    """Measure on a schedule, and report when a provider has become worse.

    A round makes --calls to each provider and model, one at a time. An alarm means that one of five
    figures has changed: the time to the first token, the speed, the share of right answers (prompts
    with "expect"), the share of failed calls or the price. It shows the route that the last rounds
    recommend, as a diff of headstart.toml. At most one month in twenty has a false alarm. --budget
    limits the cost of a day: with a small budget, rounds come less often. Ctrl-C ends the command,
    which exits with 130.
    The next run continues the history.

    Examples:
      headstart watch --budget 0.50
      headstart watch --prompts checked.jsonl --every 30m --webhook https://hooks.example.com/x
      headstart watch --once --history /var/lib/headstart/watch.jsonl
    """
    try:
        alarmed = anyio.run(_watch, options)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if alarmed:
        raise SystemExit(3)


async def _watch(options: WatchOptions) -> bool:
    """Measure rounds until cancelled, or one; return whether it raised an alarm."""
    history = await anyio.to_thread.run_sync(read_history, options.history, _now() - KEPT_S)
    prompts = await anyio.to_thread.run_sync(read_bench_prompts, options.prompts)
    plan = BenchPlan(
        prompts, options.calls, cold=0, concurrency=(1,), max_tokens=options.max_tokens,
        timeout_s=options.timeout,
    )  # fmt: skip
    wanted_s = parse_duration(options.every)
    if not wanted_s:
        raise click.BadParameter("it has to be above zero", param_hint="--every")
    async with open_configured(options.path, options.upstream, options.model) as measured:
        for note in measured.notes:
            _note(note)
        most_usd = sum(dearest_round_usd(each, plan) for each in measured.targets)
        if most_usd > options.budget:
            raise ConfigError(
                f"one round may cost ${most_usd:.3g}, which is more than --budget: give fewer "
                "--calls, a smaller --max-tokens or a larger --budget"
            )
        every_s = max(wanted_s, DAY_S * most_usd / options.budget)
        if every_s > wanted_s:
            _note(f"the budget of ${options.budget:g} a day allows a round each {every_s:.0f} s")
        state = _WatchState(options, history, measured.targets, every_s)
        while True:
            alarmed = False
            if spent_usd(state.history, _now()) + most_usd > options.budget:
                _note("this round is left out: the budget of the last 24 hours is spent")
            else:
                samples: list[Sample] = []
                await measure(measured.settings, measured.targets, plan, samples.append)
                alarmed = await state.learn(samples)
            if options.once:
                return alarmed
            await anyio.sleep(every_s)


@dataclass(eq=False, repr=False)
class _WatchState:
    """The history of rounds and the tests that learn from it."""

    options: WatchOptions
    history: list[Round]
    targets: Sequence[BenchTarget]
    every_s: InitVar[float]

    def __post_init__(self, every_s: float) -> None:
        self._subjects = [target.subject for target in self.targets]
        self._tests = Watch(limit_for(every_s, len(FIGURES) * len(self.targets)))
        for each in self.history:
            self._tests.add(each)

    async def learn(self, samples: Sequence[Sample]) -> bool:
        """Keep a round, print it, and return whether it raised an alarm."""
        now, alarms = _now(), []
        for target in self.targets:
            own = [each for each in samples if each.subject == target.subject]
            price = metered_price(target.upstream, target.sent_model)
            found = round_of(own, now, None if price is None else _per_million(price))
            self.history.append(found)
            await anyio.to_thread.run_sync(append_round, self.options.history, found)
            alarms += self._tests.add(found)
            self._print_round(found)
        for alarm in alarms:
            await self._alarm(alarm)
        return bool(alarms)

    def _print_round(self, found: Round) -> None:
        if self.options.as_json:
            shown = msgspec.structs.replace(found, samples=())
            fields = {"evidence": self._tests.evidence(found), **msgspec.to_builtins(shown)}
            click.echo(json.dumps({"round": fields}))
            return
        first = "nobody answered" if found.ttft_s is None else f"first token {found.ttft_s:.2f} s"
        parts = [f"{found.upstream} {found.model}: {first}"]
        if found.tokens_per_s is not None:
            parts.append(f"{found.tokens_per_s:.0f} tokens/s")
        if found.right is not None:
            parts.append(f"{found.right:.0%} right")
        if found.errors:
            parts.append(f"{found.errors} of {found.calls} failed")
        parts.append(f"${found.cost_usd:.4f}, evidence {self._tests.evidence(found):.0%}")
        click.echo(f"{datetime.fromtimestamp(found.at, UTC):%Y-%m-%dT%H:%MZ} {', '.join(parts)}")

    async def _alarm(self, alarm: DriftAlarm) -> None:
        path = self.options.path
        text = "" if path is None else await anyio.Path(path).read_text(encoding="utf-8-sig")
        recent = [s for subject in self._subjects for s in self._recent(subject)]
        proposed = propose(text, alarm.upstream, self._subjects, recent)
        diff = "" if proposed is None else _diff(text, proposed, path)
        if self.options.as_json:
            click.echo(json.dumps({"alarm": msgspec.to_builtins(alarm), "proposal": diff}))
        else:
            click.echo(
                f"ALARM {alarm.upstream} {alarm.model}: {alarm.figure} was {alarm.before:.3g}, "
                f"is {alarm.now:.3g}"
            )
            if diff:
                click.echo(f"the last rounds recommend:\n{diff}", nl=False)
        if self.options.webhook is not None:
            await _post(self.options.webhook, alarm, diff)

    def _recent(self, subject: Subject) -> Iterator[Sample]:
        """Yield the samples of the last rounds of a subject."""
        own = [
            each
            for each in self.history
            if (each.upstream, each.model) == (subject.upstream, subject.model)
        ]
        for round in own[-RECENT:]:
            for sample in round.samples:
                yield msgspec.structs.replace(sample, subject=subject)


def _now() -> float:
    return time.time()  # noqa: TID251 - the schedule and the history are of real time


def _note(line: str) -> None:
    click.echo(line, err=True)


def _per_million(price: Price) -> tuple[float, float]:
    return (
        price.input_per_million * price.multiplier,
        price.output_per_million * price.multiplier,
    )


def dearest_round_usd(target: BenchTarget, plan: BenchPlan) -> float:
    """Return the most that a round of one target may cost. Raises ConfigError without a price."""
    if sends_no_bill(target.upstream):
        return 0.0
    price = metered_price(target.upstream, target.sent_model)
    if price is None:
        raise ConfigError(
            f"upstream {target.upstream.name!r}: no price of {target.sent_model!r} is known, so "
            "--budget cannot be kept: set upstream.price"
        )
    dearest = 0.0
    for number in range(plan.calls):
        prompt = plan.prompts[number % len(plan.prompts)]
        characters = sum(len(str(each.get("content", ""))) for each in prompt.messages)
        answer = min(prompt.max_tokens or plan.max_tokens, plan.max_tokens)
        dearest += price.cost_usd(Tokens(characters // CHARACTERS + 16, answer))
    return dearest


def read_history(path: Path, since: float) -> list[Round]:
    """Read the rounds of a file, and cut off a last line that is not whole. Raises ConfigError."""
    try:
        if not path.exists():
            return []
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if kept != whole:
            path.write_bytes(kept)
    except OSError as error:
        raise ConfigError(f"--history {path}: {error.strerror}") from error
    rounds = decode_lines(kept.splitlines(), Round, f"--history {path}")
    return [each for each in rounds if each.at >= since]


def append_round(path: Path, found: Round) -> None:
    """Add a round to the file. Raises ConfigError."""
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")
    except OSError as error:
        raise ConfigError(f"--history {path}: {error.strerror}") from error


def propose(
    text: str, upstream: str, subjects: Sequence[Subject], samples: Sequence[Sample]
) -> str | None:
    """Return the text of headstart.toml with the route that the samples recommend.

    The first route that names the upstream is changed; without one, a route is added. None: the
    samples recommend the present route, or nothing.
    """
    routes = tomllib.loads(text).get("route", [])
    naming = [n for n, each in enumerate(routes) if upstream in each.get("upstreams", ())]
    if not naming:
        found = recommend(subjects, samples)
        return None if found is None else f"{text.rstrip()}\n\n{found.toml()}".lstrip()
    place = naming[0]
    named = routes[place]["upstreams"]
    found = recommend([each for each in subjects if each.upstream in named], samples)
    if found is None:
        return None
    try:
        result = _with_route(text, place, _route_values(found, named))
    except ConfigError:
        return None
    return None if tomllib.loads(result) == tomllib.loads(text) else result


def _route_values(found: Recommendation, named: Sequence[str]) -> dict[str, str]:
    """Return the keys of a route with these upstreams, as TOML."""
    order = [*found.upstreams, *(name for name in named if name not in found.upstreams)]
    strategy = "fallback" if found.strategy == "single" and len(order) > 1 else found.strategy
    upstreams = json.dumps(order, ensure_ascii=False)
    values = {"strategy": json.dumps(strategy), "upstreams": upstreams}
    if found.within_s is not None:
        values["within_s"] = f"{found.within_s:g}"
    if found.race_billed:
        values["race_billed"] = "true"
    return values


def _with_route(text: str, place: int, values: dict[str, str]) -> str:
    """Return the text with these keys in one of its routes. Raises ConfigError."""
    lines = text.splitlines(keepends=True)
    begin = [n for n, line in enumerate(lines) if _ROUTE.match(line)][place]
    end = next((n for n in range(begin + 1, len(lines)) if _TABLE.match(lines[n])), len(lines))
    # ``set_keys`` knows plain tables, so the route is one meanwhile.
    table = "".join(["[route]\n", *lines[begin + 1 : end]])
    removed = tuple({"within_s", "race_billed"} - values.keys())
    changed = set_keys(table, "route", values, remove=removed)
    edited = changed.replace("[route]\n", lines[begin], 1)
    return "".join([*lines[:begin], edited, *lines[end:]])


def _diff(old: str, new: str, path: Path | None) -> str:
    name = "headstart.toml" if path is None else str(path)
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, name, name))


async def _post(url: str, alarm: DriftAlarm, diff: str) -> None:
    """Post an alarm. A failure is only printed."""
    body = msgspec.json.encode({"alarm": alarm, "proposal": diff})
    timeout = aiohttp.ClientTimeout(total=_WEBHOOK_S)
    headers = {"content-type": "application/json"}
    try:
        async with (
            client_session(timeout=timeout) as session,
            session.post(url, data=body, headers=headers) as answer,
        ):
            if answer.status >= 400:
                _note(f"--webhook: the server answered with {answer.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        _note(f"--webhook: {type(error).__name__}")
