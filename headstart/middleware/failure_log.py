"""A line in the log when a stage fails that requests go on without: nobody would notice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headstart.observe import StageFailed, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.observe import Observation

QUIET_S = 3600.0
"""For so long the same failure is not told again."""


class FailureLog:
    """Observes failures. Tells each stage's first, and the same one again once an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def notify(self, observation: Observation) -> None:
        """Look whether something failed."""
        if not isinstance(observation, StageFailed):
            return
        failure, now = (observation.stage, observation.error), self._clock()
        if now < self._said.get(failure, now):
            return
        self._said[failure] = now + QUIET_S
        logger.warning(
            "%s failed, and requests go on without it: %s%s; "
            "headstart_stage_errors_total counts how often",
            observation.stage,
            observation.error,
            f" ({observation.detail})" if observation.detail else "",
        )
