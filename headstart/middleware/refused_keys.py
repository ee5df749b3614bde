"""A line in the log when a provider refuses a key of ours: where others answer, none else tells."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headstart.attempts import AttemptOutcome
from headstart.observe import Served
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.observe import Observation

logger = logging.getLogger("headstart")

_WORDS = {
    FailureKind.UNAUTHORIZED.value: "refuses its key",
    FailureKind.QUOTA.value: "has no quota left for its key",
}


class RefusedKeys:
    """Observes upstream calls. Says a refusal once, and again only after a key was accepted.

    ``variables`` names the key variables of each upstream that has a key of its own; what becomes
    of callers' keys is the callers' affair.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._said: set[tuple[str, str]] = set()

    def notify(self, observation: Observation) -> None:
        """Look at the calls of a request."""
        if not isinstance(observation, Served):
            return
        for each in observation.attempts:
            variables = self._variables.get(each.upstream)
            if variables is None:
                continue
            if each.outcome is AttemptOutcome.WON:
                self._said -= {(each.upstream, kind) for kind in _WORDS}
            elif each.error in _WORDS and (each.upstream, each.error) not in self._said:
                self._said.add((each.upstream, each.error))
                logger.warning(
                    "upstream %s %s (%s); try: headstart config check --live",
                    each.upstream,
                    _WORDS[each.error],
                    variables,
                )
