"""Match policies by the names that the commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from headstart.errors import ConfigError
from headstart.policies.match import GUARDS, StaticMatch
from headstart.policies.ratchet.domain import Domain
from headstart.policies.ratchet.settings import Promise
from headstart.policies.verified import VerifiedMatch, version_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.interfaces import MatchPolicy
    from headstart.policies.guards.parse import Parse
    from headstart.policies.ratchet.settings import JudgeNoise

CHOICES = "use verified, verified:1%, static, static:0.90, bare:0.90 (no guards) or off"


class Contender(NamedTuple):
    """A policy at the start of its life, and what learns for it."""

    policy: MatchPolicy[Parse]
    domain: Domain | None = None


class Setup(NamedTuple):
    """How contenders are made. ``state`` is what a domain starts from.

    ``settled``: as if the first near misses had just been compared, and none had another answer.
    """

    guards: bool
    noise: JudgeNoise
    max_error: float | None = None
    state: bytes | None = None
    settled: bool = False


def contender_of(name: str, setup: Setup) -> Callable[[], Contender]:
    """Return a maker of fresh contenders. Raises ConfigError for a name that is none."""
    kind, _, value = name.partition(":")
    guards = tuple(GUARDS) if setup.guards else ()
    if kind == "off" and not value:
        return lambda: Contender(_Off())
    if kind in ("static", "bare"):
        threshold = parse_share(value, f"--policy {name}") if value else None
        return lambda: Contender(StaticMatch(threshold, () if kind == "bare" else guards))
    if kind != "verified":
        raise ConfigError(f"--policy {name}: {CHOICES}")
    promise = _promise(parse_share(value, f"--policy {name}") if value else None, setup)

    def verified() -> Contender:
        domain = Domain(promise, setup.state, version=version_of(guards))
        return Contender(VerifiedMatch(promise, lambda _: domain, guards), domain)

    return verified


def parse_share(text: str, where: str) -> float:
    """Return the share that ``0.01``, ``.01`` or ``1%`` says. Raises ConfigError."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is no share such as 0.01 or 1%") from error


def _promise(max_error: float | None, setup: Setup) -> Promise:
    if max_error is None:
        max_error = setup.max_error
    if max_error is None:
        max_error = Promise().max_error
    cold_start: Literal["strict", "optimistic"] = "optimistic" if setup.settled else "strict"
    return Promise(max_error=max_error, judge=setup.noise, cold_start=cold_start)


class _Off(StaticMatch):
    """Serves nothing by meaning."""

    def __init__(self) -> None:
        super().__init__(1.0)

    @property
    def minimum(self) -> float:
        """No similarity is enough."""
        return 2.0
