"""Match policies, made from the names that the commands accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.errors import ConfigError
from headstart.policies.guards.table import GUARDS
from headstart.policies.match import StaticMatch, VerifiedMatch, version_of
from headstart.policies.ratchet.domain import Domain
from headstart.policies.ratchet.settings import Promise

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.interfaces import MatchPolicy
    from headstart.policies.guards.words import Parse
    from headstart.policies.ratchet.settings import JudgeNoise
    from headstart.settings import ColdStart

CHOICES = "use verified, verified:1%, static, static:0.90, bare:0.90 (no guards) or off"


class Contender(NamedTuple):
    """A new policy, and the domain that learns for it."""

    policy: MatchPolicy[Parse]
    domain: Domain | None = None


class Setup(NamedTuple):
    """The settings of contenders. ``state`` is a snapshot from which a domain starts.

    ``optimistic``: the domain starts as if the first near misses had been compared and had the same
    answers.
    """

    guards: bool
    noise: JudgeNoise
    max_error: float | None = None
    state: bytes | None = None
    optimistic: bool = False


def contender_of(name: str, setup: Setup) -> Callable[[], Contender]:
    """Return a function that makes new contenders. Raises ConfigError for an unknown name."""
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
    """Return the number of a share such as ``0.01``, ``.01`` or ``1%``. Raises ConfigError."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is no share such as 0.01 or 1%") from error


def _promise(max_error: float | None, setup: Setup) -> Promise:
    if max_error is None:
        max_error = setup.max_error
    if max_error is None:
        max_error = Promise().max_error
    cold_start: ColdStart = "optimistic" if setup.optimistic else "strict"
    return Promise(max_error=max_error, judge=setup.noise, cold_start=cold_start)


class _Off(StaticMatch):
    """A policy that serves no semantic hits."""

    def __init__(self) -> None:
        super().__init__(1.0)

    @property
    def minimum(self) -> float:
        """A similarity that no pair reaches."""
        return 2.0
