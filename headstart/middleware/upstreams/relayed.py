"""Upstreams that answer relayed calls: one after the other, until one does not fail."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.errors import UpstreamError, UpstreamUnavailable
from headstart.middleware.upstreams.attempt_group import AttemptErrors
from headstart.policies.routing.ordering import as_given

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.interfaces import Candidate
    from headstart.reply import Reply
    from headstart.types import Call


class RelayedInTurn:
    """Asks upstreams of one dialect in their order, whatever the strategy of the route is.

    Nothing is asked twice, and no two upstreams are asked at once: a relayed call may create
    something. A call moves on if an upstream fails before its answer has begun
    (``failures.fails_relayed``), and if the body of the request is kept. Upstreams that fail these
    days are asked last. ``draw`` gives random numbers in [0, 1).
    """

    def __init__(
        self, name: str, members: Sequence[Candidate], *, draw: Callable[[], float]
    ) -> None:
        self.name = name
        self.identity = ",".join(sorted({each.identity for each in members}))
        self.names = frozenset().union(*(each.names for each in members))
        self._members = tuple(members)
        self._draw = draw

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the estimate of the upstream that would be asked first."""
        members = self._ordered(call)
        if not members:
            return RoutingEstimate(name=self.name, ready=False)
        return msgspec.structs.replace(members[0].estimate(call), name=self.name)

    async def send(self, call: Call) -> Reply:
        """Send the call, and wait for an answer to begin. Raises UpstreamError if all fail."""
        members = deque((each, False) for each in self._ordered(call))
        if not members:
            raise UpstreamUnavailable("no upstream is left to ask")
        errors, role, place = AttemptErrors(range(2 * len(members))), call.role, 0
        while members and (call.upload is None or call.upload.whole):
            member, insists = members.popleft()
            try:
                return await member.send(
                    msgspec.structs.replace(call, role=role, ignore_breaker=insists)
                )
            except UpstreamUnavailable as error:
                errors.add(place, error, blames_caller=False)
                if not (error.limited or insists):
                    members.append((member, True))
            except UpstreamError as error:
                errors.add(place, error, blames_caller=False)
                role = AttemptRole.FALLBACK
            place += 1
        raise errors.most_useful()

    def _ordered(self, call: Call) -> list[Candidate]:
        members = [each for each in self._members if not each.names <= call.avoid]
        if len(members) < 2:
            return members
        estimates = [each.estimate(call) for each in members]
        return [members[place] for place in as_given(estimates, draw=self._draw)]
