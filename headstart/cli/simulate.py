"""``headstart simulate``: simulated providers on loopback."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from headstart.errors import ConfigError
from headstart.simulator.answer_key import AnswerKey, read_answer_key
from headstart.simulator.app import Simulator
from headstart.simulator.oracle import Oracle
from headstart.simulator.profiles import FIGURES_AS_OF, PROFILES, Profile
from headstart.simulator.weather import WEATHERS, Spell, find_weather, read_weather

EPILOG = """\b
Examples:
  headstart simulate --profile groq --port 9090
  headstart simulate --profile stalls --seed 7 --speed 10
  headstart simulate --profile groq --weather flapping
  headstart simulate --answers questions.jsonl --vary
  headstart simulate --list

\b
Then, in another terminal:
  headstart serve --upstream http://127.0.0.1:9090/v1

\b
It speaks, whatever the profile:
  OpenAI chat         POST /v1/chat/completions
  Anthropic Messages  POST /v1/messages
  Gemini              POST /v1beta/models/{model}:generateContent, :streamGenerateContent
  Cohere v2           POST /v2/chat

\b
Any key is accepted and every model name answers. GET /_sim/stats and /_sim/requests say what the
provider saw, POST /_sim/reset starts over, and the request header x-sim-fault asks for a fault
(docs/simulator.md).
"""


@click.command(epilog=EPILOG)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9090,
    show_default=True,
    help="Port to bind; 0 picks a free one.",
)
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="openai",
    show_default=True,
    metavar="NAME",
    help="Which provider to behave like; --list shows them.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed, the same delays."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Run simulated time this many times faster.",
)
@click.option(
    "--weather",
    metavar="NAME|FILE.toml",
    help=f"When it fails, flaps or slows down: {', '.join(WEATHERS)}, or [[spell]] tables.",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(1, 100_000),
    help="Tokens of every answer outside the catalogue.  [default: 40 to 200]",
)
@click.option(
    "--answers",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="STREAM.jsonl",
    help='Lines {"prompt", "class"}: the prompts of a class get the same facts as an answer.',
)
@click.option("--vary", is_flag=True, help="Word every answer to --answers anew.")
@click.option("--list", "list_them", is_flag=True, help="List the profiles and exit.")
def simulate(
    *,
    host: str,
    port: int,
    profile: str,
    seed: int,
    speed: float,
    weather: str | None,
    answer_tokens: int | None,
    answers: Path | None,
    vary: bool,
    list_them: bool,
) -> None:
    """Run a simulated provider that speaks every dialect: no key, no network.

    Time to first token, tokens per second and stalls follow a provider's published figures and
    are drawn from a seed. Answers are scripted text; the same question gets the same answer, in
    other words each time with --vary.
    """
    if list_them:
        click.echo(_table())
        return
    from headstart.simulator.server import run
    from headstart.sockets import bind, url_of

    if vary and answers is None:
        raise click.UsageError("--vary words the answers to a stream anew: give --answers")
    oracle = Oracle(answer_tokens=answer_tokens)
    if answers is not None:
        with answers.open("rb") as lines:
            rows = read_answer_key(lines)
        oracle = AnswerKey(rows, vary=vary, answer_tokens=answer_tokens)
    spells = () if weather is None else _weather(weather)
    simulator = Simulator(profile, seed=seed, speed=speed, weather=spells, oracle=oracle)
    with bind(host, port) as sock, contextlib.suppress(KeyboardInterrupt):
        line = (
            f"simulated provider {profile!r} on {url_of(sock)}/v1 (seed {seed}, speed {speed:g}x): "
            f"{_describe(simulator.profile)}. Ctrl-C stops it."
        )
        run(simulator, sock, lambda: click.echo(line))
    seen = simulator.stats.snapshot()
    click.echo(f"\nstopped after {seen.calls} calls, {seen.cancelled} of them cancelled by clients")


def _weather(named: str) -> tuple[Spell, ...]:
    """Return the weather of a file or of that name. Raises ConfigError."""
    if not named.endswith(".toml"):
        return find_weather(named)
    try:
        return read_weather(Path(named).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {named}: {error.strerror}") from error


def _describe(profile: Profile) -> str:
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
