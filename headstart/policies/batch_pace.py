"""How many calls a batch makes at once: it finds the provider's limit by itself.

Additive increase and multiplicative decrease, as in TCP (Chiu and Jain, 1989). The limit doubles
with each round of answers until the first sign of too many calls, and then rises by one call with
each round. A refusal (429) halves it; a round of slow answers lowers it by a fifth.
"""

from __future__ import annotations

import math

import msgspec

from headstart.types import Frozen

FIRST_LIMIT = 4.0
AFTER_REFUSAL, AFTER_SLOW_ROUND = 0.5, 0.8
"""The factors by which the limit falls."""
SLOW = 2.0
"""A round of answers that take this many times as long as usual is a sign of too many calls."""
LEAST_ANSWERS = 16
"""A round has as many answers as the limit, and at least so many: their mean has to say something
about how long they take."""
SLOWER_STILL = 1.1
"""A round that takes this many times as long as the slow one before is the first of a new row."""
MOST_SLOW_ROUNDS, STILL_SLOW = 3, 0.75
"""If so many lower limits did not bring the time below this share, the requests take longer by
themselves, and this is the usual time from now on."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""The pause after a refusal that names no time. It doubles until a call is answered."""
MOST_REFUSALS = 10
"""So many rounds that are refused one after the other end the batch."""


class BatchPace(Frozen):
    """What is known about the provider's limit. Times are in seconds of one monotonic clock."""

    most: int
    """The limit never rises above this number of calls."""
    limit: float = FIRST_LIMIT
    searching: bool = True
    """No sign of too many calls was seen yet."""
    lowered_at: float = -math.inf
    """A call that began earlier says nothing about the limit of now."""
    resumes_at: float = -math.inf
    """No call may begin before."""
    refusals: int = 0
    """Rounds that were refused since the last answer."""
    usual_s: float | None = None
    """The time that an answer takes while there is room."""
    slow_rounds: int = 0
    """Slow rounds in a row, each with a lower limit."""
    slow_s: float = 0.0
    """The mean time of an answer in the first of them."""
    answers: int = 0
    """The answers of this round."""
    seconds: float = 0.0
    """The sum of the times of this round's answers."""
    most_in_flight: int = 0
    """The most calls that ran at once in this round."""

    @property
    def calls(self) -> int:
        """The number of calls that may run at once."""
        return max(1, min(int(self.limit), self.most))

    @property
    def gives_up(self) -> bool:
        """The provider refuses everything."""
        return self.refusals >= MOST_REFUSALS


def answered(
    pace: BatchPace, *, began: float, took_s: float, in_flight: int, now: float
) -> BatchPace:
    """Return the pace after an answer of a provider.

    The call ``began`` then, and its first content came after ``took_s``. ``in_flight`` counts the
    calls that ran, with this one: where they were fewer than allowed, the limit was not tested.
    """
    pace = msgspec.structs.replace(pace, refusals=0)
    if began < pace.lowered_at:
        return pace
    pace = msgspec.structs.replace(
        pace,
        answers=pace.answers + 1,
        seconds=pace.seconds + took_s,
        most_in_flight=max(pace.most_in_flight, in_flight),
    )
    return _after_round(pace, now) if pace.answers >= max(LEAST_ANSWERS, pace.limit) else pace


def _after_round(pace: BatchPace, now: float) -> BatchPace:
    """Return the pace after a round of answers: a lower one if they took long."""
    mean_s, tested = pace.seconds / pace.answers, pace.most_in_flight >= pace.calls
    pace = msgspec.structs.replace(pace, answers=0, seconds=0.0, most_in_flight=0)
    usual_s = mean_s if pace.usual_s is None else min(mean_s, pace.usual_s)
    if mean_s <= SLOW * usual_s:
        raised = pace.limit * 2.0 if pace.searching else pace.limit + 1.0
        limit = min(float(pace.most), raised) if tested else pace.limit
        return msgspec.structs.replace(pace, limit=limit, usual_s=usual_s, slow_rounds=0)
    rounds, slow_s = pace.slow_rounds + 1, pace.slow_s
    if rounds == 1 or mean_s > SLOWER_STILL * slow_s:
        rounds, slow_s = 1, mean_s
    elif rounds > MOST_SLOW_ROUNDS and mean_s > STILL_SLOW * slow_s:
        return msgspec.structs.replace(pace, usual_s=mean_s, slow_rounds=0)
    pace = msgspec.structs.replace(pace, slow_rounds=rounds, slow_s=slow_s)
    return _lowered(pace, AFTER_SLOW_ROUND, now)


def refused(pace: BatchPace, *, began: float, wait_s: float | None, now: float) -> BatchPace:
    """Return the pace after a refusal.

    ``wait_s`` is the time after which the provider may be asked again; None: it names none.
    """
    if began >= pace.lowered_at:  # the others of the same round say the same
        pace = msgspec.structs.replace(
            _lowered(pace, AFTER_REFUSAL, now), refusals=pace.refusals + 1
        )
    if wait_s is None:
        doubled_s = FIRST_PAUSE_S * 2.0 ** (pace.refusals - 1)
        wait_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, doubled_s))
    return msgspec.structs.replace(pace, resumes_at=max(pace.resumes_at, now + wait_s))


def crowded(pace: BatchPace, *, began: float, now: float) -> BatchPace:
    """Return the pace after a call that was refused first and answered on a later try."""
    return _lowered(pace, AFTER_REFUSAL, now) if began >= pace.lowered_at else pace


def _lowered(pace: BatchPace, factor: float, now: float) -> BatchPace:
    return msgspec.structs.replace(
        pace,
        limit=max(1.0, pace.limit * factor),
        searching=False,
        lowered_at=now,
        answers=0,
        seconds=0.0,
        most_in_flight=0,
    )
