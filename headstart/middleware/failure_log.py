"""Lines in the log when a stage fails that requests go on without, and when an upstream does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headstart.attempts import AttemptOutcome
from headstart.observe import Served, StageFailed, UpstreamFailed, logger
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headstart.observe import Observation

QUIET_S = 3600.0
"""For so long the same failure of a stage is not told again."""
UPSTREAM_QUIET_S = 60.0
"""The same for an upstream's. Those that come meanwhile are counted."""
MOST_CAUSES = 1000
_FAILED = (AttemptOutcome.FAILED, AttemptOutcome.BROKEN)
_CALLERS_OWN = frozenset(
    kind.value
    for kind in (
        FailureKind.BAD_REQUEST,
        FailureKind.CONTEXT_TOO_LONG,
        FailureKind.CONTENT_POLICY,
        FailureKind.FILTERED,
    )
)
"""Failures that say something about a request, and nothing about the upstream."""
_NOT_ASKED = ("upstream_unavailable", "rate_limit_exceeded")
"""Errors of requests for which no upstream could be asked."""


class FailureLog:
    """Observes failures. ``clock`` gives seconds.

    Tells each stage's first, and the same one again once an hour; each upstream's first of a
    cause, and once a minute how many more there were.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}
        self._causes: dict[tuple[str, str, int], _Quiet] = {}

    def notify(self, observation: Observation) -> None:
        """Look whether something failed."""
        if isinstance(observation, StageFailed):
            self._tell_stage(observation)
        elif isinstance(observation, UpstreamFailed):
            self._tell_upstream((observation.upstream, observation.error, observation.status))
        elif isinstance(observation, Served):
            for cause in _causes(observation):
                self._tell_upstream(cause)

    def _tell_stage(self, failed: StageFailed) -> None:
        failure, now = (failed.stage, failed.error), self._clock()
        if now < self._said.get(failure, now):
            return
        self._said[failure] = now + QUIET_S
        logger.warning(
            "%s failed, and requests go on without it: %s%s; "
            "headstart_stage_errors_total counts how often",
            failed.stage,
            failed.error,
            f" ({failed.detail})" if failed.detail else "",
        )

    def _tell_upstream(self, cause: tuple[str, str, int]) -> None:
        now, quiet = self._clock(), self._causes.get(cause)
        if quiet is not None and now < quiet.until:
            quiet.more += 1
            return
        if len(self._causes) >= MOST_CAUSES:
            self._causes.clear()
        self._causes[cause] = _Quiet(now + UPSTREAM_QUIET_S)
        upstream, error, status = cause
        logger.warning(
            "%s: %s%s%s",
            f"upstream {upstream} failed" if upstream else "no upstream could be asked",
            error,
            f" (status {status})" if status else "",
            f"; {quiet.more} more since it was last told"
            if quiet is not None and quiet.more
            else "",
        )


class _Quiet:
    """A cause that was told: when it may be told again, and how often it came meanwhile."""

    __slots__ = ("more", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.more = 0


def _causes(served: Served) -> Iterator[tuple[str, str, int]]:
    """Yield upstream, kind and status of each failed call that a request caused."""
    for each in served.attempts:
        if each.outcome in _FAILED and each.error not in _CALLERS_OWN:
            yield each.upstream, each.error or "error", each.status
    if not served.attempts and served.error in _NOT_ASKED:
        yield "", served.error, 0
