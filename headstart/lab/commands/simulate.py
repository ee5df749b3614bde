"""``headstart simulate``: simulated providers on loopback."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import click

from headstart.cli.data_sources import lines_of
from headstart.cli.options import ABOVE_ZERO, OLD_FILE, command, flag, option
from headstart.errors import ConfigError
from headstart.lab.simulator.app import Simulator, run
from headstart.lab.simulator.faults import WEATHERS, Spell, find_weather, read_weather
from headstart.lab.simulator.oracle import AnswerKey, Oracle, read_answer_key
from headstart.lab.simulator.profiles import FIGURES_AS_OF, PROFILES, ProviderProfile
from headstart.sockets import bind, url_of

WEATHER_HELP = f"Failures and slowness over time: {', '.join(WEATHERS)}, or [[spell]] tables."
TOKENS_HELP = "Tokens of every answer outside the catalogue.  [default: 40 to 200]"
ANSWERS_HELP = 'Lines {"prompt", "class"}: the prompts of a class get the same facts as an answer.'
PROFILE_HELP = "Provider to imitate; --list shows the names."
PROFILE = click.Choice(list(PROFILES))


@dataclass(frozen=True)
class SimulateOptions:
    """The options of ``headstart simulate``."""

    host: str = option("127.0.0.1", "Address to bind.")
    port: int = option(9090, "Port to bind; 0 picks a free one.", click.IntRange(0, 65535))
    profile: str = option("openai", PROFILE_HELP, PROFILE, metavar="NAME")
    seed: int = option(0, "The same seed gives the same delays.")
    speed: float = option(1.0, "Run simulated time this many times faster.", ABOVE_ZERO)
    weather: str | None = option(None, WEATHER_HELP, metavar="NAME|FILE.toml")
    answer_tokens: int | None = option(None, TOKENS_HELP, click.IntRange(1, 100_000))
    answers: Path | None = option(None, ANSWERS_HELP, OLD_FILE, metavar="STREAM.jsonl")
    vary: bool = flag("Use other words for each answer of --answers.")
    list_them: bool = flag("List the profiles and exit.", "--list")


@command(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Run a simulated provider that speaks every dialect: no key, no network.

    Time to first token, tokens per second and stalls follow a provider's published figures and
    are drawn from a seed. The same question gets the same scripted answer; with --vary, each
    answer has other words.

    Examples:
      headstart simulate --profile groq --port 9090
      headstart simulate --profile stalls --seed 7 --speed 10
      headstart simulate --profile groq --weather flapping
      headstart simulate --answers questions.jsonl --vary
      headstart simulate --list

    Then, in another terminal:
      headstart serve --upstream http://127.0.0.1:9090/v1

    Every profile answers these requests:
      OpenAI chat         POST /v1/chat/completions
      OpenAI Responses    POST /v1/responses
      Anthropic Messages  POST /v1/messages
      Gemini              POST /v1beta/models/{model}:generateContent, :streamGenerateContent
      Cohere v2           POST /v2/chat
      Bedrock Converse    POST /model/{id}/converse, /model/{id}/converse-stream

    Any key is accepted and every model name answers. GET /_sim/stats and /_sim/requests say what
    the provider saw, POST /_sim/reset starts over, and the request header x-sim-fault asks for a
    fault (docs/simulator.md).
    """
    if options.list_them:
        click.echo(_table())
        return
    if options.vary and options.answers is None:
        raise click.UsageError("--vary changes the answers of a stream: give --answers")
    oracle = Oracle(answer_tokens=options.answer_tokens)
    if options.answers is not None:
        rows = read_answer_key(lines_of(options.answers))
        oracle = AnswerKey(rows, vary=options.vary, answer_tokens=options.answer_tokens)
    simulator = Simulator(
        options.profile,
        seed=options.seed,
        speed=options.speed,
        weather=() if options.weather is None else _weather(options.weather),
        oracle=oracle,
    )
    with bind(options.host, options.port) as sock, contextlib.suppress(KeyboardInterrupt):
        line = (
            f"simulated provider {options.profile!r} on {url_of(sock)}/v1 (seed {options.seed}, "
            f"speed {options.speed:g}x): {_describe(simulator.profile)}. Ctrl-C stops it."
        )
        run(simulator, sock, lambda: click.echo(line))
    seen = simulator.stats.snapshot()
    click.echo(f"\nstopped after {seen.calls} calls, {seen.cancelled} of them cancelled by clients")


def _weather(named: str) -> tuple[Spell, ...]:
    """Return the weather (the faults by time) in a TOML file, or of a name. Raises ConfigError."""
    if not named.endswith(".toml"):
        return find_weather(named)
    try:
        return read_weather(Path(named).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {named}: {error.strerror}") from error


def _describe(profile: ProviderProfile) -> str:
    parts = []
    if profile.ttft_ms:
        parts.append(f"first token after {profile.ttft_ms:g} ms (median)")
    if profile.tokens_per_s:
        low, high = profile.tokens_per_s
        parts.append(f"{low:g}-{high:g} tokens/s" if low < high else f"{low:g} tokens/s")
    if profile.stall:
        low, high = profile.stall_s
        parts.append(f"{profile.stall:.1%} stall for {low:g}-{high:g} s")
    if profile.error:
        parts.append(f"{profile.error:.0%} fail")
    if profile.requests_per_minute:
        parts.append(f"{profile.requests_per_minute} requests a minute and key")
    if profile.parallel:
        parts.append(f"{profile.parallel} calls at a time")
    if profile.prefill_ms_per_1k:
        parts.append(f"{profile.prefill_ms_per_1k:g} ms a thousand prompt tokens")
    return ", ".join(parts) or "no delays"


def _table() -> str:
    lines = [f"Figures as of {FIGURES_AS_OF}; prices in dollars per million tokens, in/out.", ""]
    for name, profile in PROFILES.items():
        price = profile.usd_per_million
        cost = f"; ${price.input:g}/${price.output:g}" if price else ""
        assumed = f" (assumed: {', '.join(profile.assumed)})" if profile.assumed else ""
        lines += [f"{name:<14}{_describe(profile)}{cost}", f"{'':<14}{profile.notes}{assumed}"]
    return "\n".join(lines)
