"""The cases of ``benchmarks.faults``: a fault of a provider, and the result that a caller needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from headstart.lab.simulator import Oracle, Simulator
from headstart.lab.simulator.faults import (
    Cut,
    Empty,
    ErrorFrame,
    InvalidEvent,
    LongLine,
    NoDone,
    Spell,
    Stall,
    Status,
    Trickle,
)
from headstart.lab.simulator.profiles import ProviderProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.lab.simulator.faults import Fault
    from headstart.lab.simulator.oracle import Truth
    from headstart.lab.simulator.simulated_calls import EndedCall

PRIMARY = ProviderProfile(model="primary-model", ttft_ms=150, tokens_per_s=(150, 150))
FALLBACK = ProviderProfile(
    model="fallback-model", ttft_ms=150, tokens_per_s=(150, 150), prefill="refused"
)
"""It gives the same answers under another model name. It does not continue the beginning of an
answer (prefill)."""
ORACLE = Oracle(answer_tokens=60)


class _OtherWords(Oracle):
    """Gives another text for each prompt than ``ORACLE``."""

    def truth(self, prompt: str) -> Truth:
        return super().truth(f"again: {prompt}")


OTHER_WORDS = _OtherWords(answer_tokens=60)
OUTAGE_S = 60.0
RECOVERY_S = 30.0


@dataclass
class Heard:
    """The caller's result of one call. Seconds are since the call was made."""

    status: int = 0
    text: str = ""
    error: str | None = None
    """Code and message of an error, as a status or in the stream."""
    model: str = ""
    usage: dict[str, Any] | None = None
    finished: bool = False
    """A finish reason came."""
    upstream: str = ""
    first_s: float | None = None
    total_s: float = 0.0
    at: float = 0.0
    """When it was made, in seconds since the case began."""
    whole: bool = False
    """The text is the right answer, from its first word to its last, and it finished."""

    @property
    def truncated(self) -> bool:
        """Whether the answer looks finished, but is not whole. This must never happen."""
        return self.status == 200 and self.error is None and not self.whole


@dataclass
class Seen:
    """The facts by which a case is judged."""

    heard: list[Heard]
    """The calls of the case."""
    after: Heard | None
    """One more call, shortly after the calls of the case."""
    primary: Sequence[EndedCall]
    """The calls that the provider with the fault got, without ``after``."""
    fallback: Sequence[EndedCall]
    costs: dict[str, float] = field(default_factory=dict)
    """Dollars booked, by upstream."""

    @property
    def first(self) -> Heard:
        return self.heard[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between the attempts that the primary saw."""
        times = [record.at for record in self.primary]
        return [later - sooner for sooner, later in pairwise(times)]

    def within(self, seconds: float) -> int:
        """Return how many attempts the primary got in these seconds after the first one."""
        times = [record.at for record in self.primary]
        return sum(at - times[0] <= seconds for at in times)


Verdict: TypeAlias = "tuple[str, str]"
"""``pass``, ``partial`` or ``fail``, and why."""


@dataclass(frozen=True)
class Case:
    """One fault of a provider, which has a healthy provider as its fallback."""

    name: str
    what: str
    judge: Callable[[Seen], str | None]
    """Returns the problem, or None."""
    fault: Fault | None = None
    weather: tuple[Spell, ...] = ()
    calls: int = 1
    every_s: float = 0.0
    pause_s: float = 0.5
    """The time between the calls of the case and the call ``Seen.after``."""
    lone: bool = False
    """There is no fallback."""
    base_url: str | None = None
    """The address of the primary provider if it is not a simulated one; ``{port}`` is that of a
    plain HTTP server."""
    keys: tuple[str, ...] = ()
    """The keys of the upstream. The provider accepts only the last one."""
    model: str = "m"
    primary: dict[str, Any] = field(default_factory=dict)
    """Settings of the upstream."""
    fallback: dict[str, Any] = field(default_factory=dict)
    oracle: Oracle = ORACLE
    """It decides the texts of the fallback."""

    def simulators(self, speed: float) -> tuple[Simulator, Simulator]:
        """Return the provider with the fault and the fallback. ``speed`` divides their times."""
        primary = Simulator(
            PRIMARY,
            speed=speed,
            oracle=ORACLE,
            fault=self.fault,
            weather=self.weather,
            api_keys=self.keys[-1:],
        )
        return primary, Simulator(FALLBACK, speed=speed, oracle=self.oracle)

    def verdict(self, seen: Seen) -> Verdict:
        """Judge a case. It fails if an answer was truncated, or if the call after it failed."""
        if any(each.truncated for each in seen.heard):
            return "fail", "a truncated answer looked finished"
        if seen.after is not None and not seen.after.whole:
            return "fail", f"the call right after failed: {seen.after.error}"
        wrong = self.judge(seen)
        if wrong is None:
            return "pass", ""
        return ("fail" if wrong.startswith("no answer") else "partial"), wrong


def _answered(seen: Seen) -> str | None:
    for each in seen.heard:
        if not each.whole:
            return f"no answer: {each.status} {each.error}"
    return None


def _attempts(most: int) -> Callable[[Seen], str | None]:
    def judge(seen: Seen) -> str | None:
        if len(seen.primary) > most:
            return f"{len(seen.primary)} attempts"
        return _answered(seen)

    return judge


def _by(seconds: float, attempts: int | None = None) -> Callable[[Seen], str | None]:
    def judge(seen: Seen) -> str | None:
        if wrong := _answered(seen):
            return wrong
        if seen.first.total_s > seconds:
            return f"took {seen.first.total_s:.1f} s"
        if attempts is not None and len(seen.primary) != attempts:
            return f"{len(seen.primary)} attempts"
        return None

    return judge


def _limited_once(seen: Seen) -> str | None:
    if wrong := _answered(seen):
        return wrong
    if seen.gaps and seen.gaps[0] < 1.8:
        return f"asked again after {seen.gaps[0]:.1f} s"
    if seen.after is None or seen.after.model != PRIMARY.model:
        return "the provider was dropped for good"
    return None


def _always_limited(seen: Seen) -> str | None:
    if len(seen.primary) > 6 or seen.within(3.0) > 4:
        return f"{len(seen.primary)} attempts, {seen.within(3.0)} of them in 3 s"
    return _answered(seen)


def _retried_here(seen: Seen) -> str | None:
    if len(seen.primary) != 2 or seen.fallback:
        return f"{len(seen.primary)} attempts here, {len(seen.fallback)} there"
    return _answered(seen)


def _whole_or_error(seen: Seen) -> str | None:
    if seen.first.whole:
        return None
    return f"a clear error, not the answer: {seen.first.error}"


def _clear_error(seen: Seen) -> str | None:
    if not seen.first.text or (seen.first.error or "").count("upstream") == 0:
        return f"no answer, and no error either: {seen.first.error}"
    return None


def _with_usage(seen: Seen) -> str | None:
    if wrong := _by(8.0)(seen):
        return wrong
    return None if seen.first.usage else "no usage"


def _larger(seen: Seen) -> str | None:
    if len(seen.primary) != 1:
        return f"{len(seen.primary)} attempts"
    return _answered(seen)


def _blamed(seen: Seen) -> str | None:
    if len(seen.primary) != 1 or seen.fallback:
        return f"{len(seen.primary)} attempts here, {len(seen.fallback)} there"
    if seen.first.status != 400 or _POLICY.message not in (seen.first.error or ""):
        return f"no reason was given: {seen.first.status} {seen.first.error}"
    return None


def _recovered(seen: Seen) -> str | None:
    if wrong := _answered(seen):
        return wrong
    back = [each.at for each in seen.heard if each.model == PRIMARY.model]
    if not back:
        return "never back on the primary"
    if back[0] - OUTAGE_S > RECOVERY_S:
        return f"back after {back[0] - OUTAGE_S:.0f} s"
    if len(seen.primary) > 30:
        return f"{len(seen.primary)} calls to a provider that is down"
    return None


def _shown_as_it_is(seen: Seen) -> str | None:
    if wrong := _attempts(6)(seen):
        return wrong
    if seen.first.model != FALLBACK.model or not seen.first.usage:
        return f"model {seen.first.model}, usage {seen.first.usage}"
    if seen.costs.get("primary") or not seen.costs.get("fallback"):
        return f"booked {seen.costs}"
    return None


def _one_key_each(seen: Seen) -> str | None:
    if len(seen.primary) != len({record.credential for record in seen.primary}):
        return "a refused key was asked again"
    return _answered(seen)


_CONTEXT = Status(status=400, message="maximum context length", code="context_length_exceeded")
_POLICY = Status(
    status=400, message="against our content policy", code="content_policy_violation", times=1
)
_SMALL = {"preset": "cerebras"}
_LARGE = {"preset": "groq"}

CATALOGUE = (
    Case("1", "429, retry-after 2, once", _limited_once, pause_s=3.0,
         fault=Status(status=429, headers={"retry-after": "2"}, times=1)),
    Case("2", "429 without a header, always", _always_limited, fault=Status(status=429)),
    Case("3", "500 once", _retried_here, fault=Status(status=500, times=1)),
    Case("4", "503 always", _attempts(6), fault=Status(status=503)),
    Case("5", "reset before a byte, once", _by(10.0), fault=Cut(times=1)),
    Case("6", "accepts, never answers", _by(100.0, attempts=1), fault=Stall(seconds=600)),
    Case("7", "headers, first token after 20 s", _by(15.0), fault=Stall(after=0, seconds=20)),
    Case("8", "dies after 40 of 60 tokens", _whole_or_error, fault=Cut(after=40)),
    Case("9", "30 s of silence after 20 tokens, then closed", _by(45.0),
         fault=Cut(after=20, how="close", delay_s=30, times=1)),
    Case("10", "one event is not JSON", _whole_or_error, fault=InvalidEvent(after=20, times=1)),
    Case("11", "no [DONE]", _with_usage, fault=NoDone()),
    Case("12", "400 context too long", _larger, fault=_CONTEXT, model="llama-3.1-8b",
         primary=_SMALL, fallback=_LARGE),
    Case("13", "400 content policy", _blamed, fault=_POLICY),
    Case("14", "as 8; the fallback takes no prefill", _whole_or_error, fault=Cut(after=40)),
    Case("15", "503 for 60 s; a call every 4 s", _recovered, calls=24, every_s=4.0,
         weather=(Spell(to_s=OUTAGE_S, fault=Status(status=503)),)),
    Case("16", "503 always: names, usage, bill", _shown_as_it_is, fault=Status(status=503)),
)  # fmt: skip
MORE = (
    Case("dns", "the name does not resolve", _answered, base_url="http://provider.invalid"),
    Case("tls", "no TLS where it is spoken", _answered, base_url="https://127.0.0.1:{port}"),
    Case("refused", "nobody listens", _answered, base_url="http://127.0.0.1:9"),
    Case("key", "401 under one key of two", _one_key_each, keys=("wrong", "right"), lone=True),
    Case("529", "529 always", _attempts(6), fault=Status(status=529)),
    Case("error-200", "200 with an error body", _answered, fault=Status(
        status=200, body='{"error":{"message":"Oops","type":"server_error"}}')),
    Case("html-200", "200 with a web page", _answered, fault=Status(
        status=200, headers={"content-type": "text/html"}, body="<html>Oops</html>")),
    Case("error-first", "an error opens the stream", _answered, fault=ErrorFrame()),
    Case("error-later", "an error in the stream", _answered, fault=ErrorFrame(after=20)),
    Case("empty", "an empty stream", _answered, fault=Empty()),
    Case("done", "a bare [DONE]", _answered, fault=Empty(done=True)),
    Case("trickle", "8 bytes every 5 ms", _by(45.0, 1), fault=Trickle(bytes=8, every_s=0.005)),
    Case("crawl", "a byte every 0.2 s", _by(15.0), fault=Trickle(bytes=1, every_s=0.2)),
    Case("pings", "comments, never a token", _by(15.0),
         fault=Stall(after=0, seconds=600, keep_alive_s=1.0)),
    Case("frame", "a frame of 10 MB", _answered, fault=LongLine(after=20, bytes=10 << 20)),
    Case("other-words", "8; the fallback says something else", _clear_error,
         fault=Cut(after=40, times=1), oracle=OTHER_WORDS),
    Case("lone-cut", "8, and nobody else", _answered, fault=Cut(after=40, times=1), lone=True),
)  # fmt: skip
