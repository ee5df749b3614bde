"""The rate limits of providers that all nodes of a store share.

The store has one document for each (upstream, model, key). A process applies its changes to the
last document that it knows. It replaces the document only if no other process has changed it, else
it applies its changes again to the new one. So the limits are those of
``policies/routing/rate_limits.py`` in every process, and all processes count in one order.

A call usually waits until it is counted in the store. While much of a limit is left, a process that
has read the document within ``FRESH_S`` does not wait: it counts the call in memory and writes it
later. Its unwritten calls may use the share ``AHEAD`` (1/32) of the rest, so 32 processes together
cannot exceed the limit. If the store fails, each node goes on alone with the limits that it saw
last.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from headstart.errors import StoreError
from headstart.policies.routing.rate_limits import (
    NOTHING_TAKEN,
    RateLimits,
    SavedLimits,
    Taken,
    are_possible,
    limit_windows,
)
from headstart.types import UNDECODABLE, Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.interfaces import SwapStore
    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.upstreams.accounting import UpstreamState
    from headstart.policies.routing.rate_limits import LimitWindow

AHEAD = 1 / 32
"""The share of what is left of a limit that unwritten calls may use."""
RESERVE = 0.05
"""The share of a bucket, but at most one call, that is not used, because its level is not exact."""
FRESH_S = 0.1
"""A process that has not read the document for so long asks the store before it makes a call."""
WRITE_UNKNOWN_S, WRITE_S, WRITE_SOON_S = 1.0, 0.5, 0.02
"""The longest time until changes are written: while no limit is known, while more than half of each
limit is left, and later."""
AFTER_FAILURE_S = 1.0
"""Seconds until the store is asked again after a failure."""
MOST_TRIES = 256
"""Most tries to write changes. A node that never succeeds goes on alone."""
KEPT_S = 3600.0
"""A document that nobody changes for this time is gone."""

_decoder: msgspec.msgpack.Decoder[tuple[SavedLimits, list[float]]] = msgspec.msgpack.Decoder(
    tuple[SavedLimits, list[float]]
)


class Counted(NamedTuple):
    """The result of counting a call in the limits."""

    wait_s: float = 0.0
    """Seconds until it fits; 0: it was counted."""
    taken: Taken = NOTHING_TAKEN


@dataclass(slots=True, eq=False)
class _TakenCall:
    """A call that is counted. Its ``taken`` is filled in once the store has counted it."""

    tokens: int
    answer: asyncio.Future[Counted | None] | None = None
    """Set if the call waits for the store; its result is None if the store failed."""
    calls: int = 1
    """The number of calls that must fit: this one and those before it in the queue."""
    taken: Taken = field(default_factory=dict)
    wait_s: float = 0.0

    def __call__(self, limits: RateLimits, now: float) -> None:
        """Count the call, if it fits or was made already."""
        self.taken.clear()
        if self.answer is not None:
            if self.answer.cancelled():
                return
            self.wait_s = limits.ready_in_s(self.tokens, now, self.calls, reserve=RESERVE)
            if self.wait_s > 0.0:
                return
        self.taken.update(limits.take(self.tokens, now))


_Change: TypeAlias = "_TakenCall | Callable[[RateLimits, float], object]"
"""A change of limits, which gets the limits and the time. It may be made several times."""


class NodeLimits:
    """All limits that a process shares with others through ``store``."""

    def __init__(self, store: SwapStore, secret: bytes, spawn: Spawn) -> None:
        self.store = store
        self.spawn = spawn
        self._secret = secret[:64]
        self.failed_at = -math.inf
        """The time of the store's last failure."""

    def close(self) -> None:
        """Ask the store no more: each node goes on alone."""
        self.failed_at = math.inf

    def share(self, state: UpstreamState, *name: str) -> StoredLimits:
        """Let the limits of a state be those of all nodes. ``name`` is the same on all nodes."""
        limits = state.limits
        if isinstance(limits, StoredLimits):
            if limits.nodes is self:
                return limits
            limits = limits.local
        digest = blake2b("\0".join(name).encode(), digest_size=16, key=self._secret).hexdigest()
        state.limits = StoredLimits(limits, self, f"limits:{digest}")
        return state.limits


class StoredLimits(RateLimits):
    """The limits of one (upstream, model, key) in a document of the store.

    ``local`` has them in this node's memory, and serves while the store fails. Times here are those
    of the event loop, and in the document those of the store.
    """

    def __init__(self, local: RateLimits, nodes: NodeLimits, name: str) -> None:
        super().__init__()
        self.local = local
        self.nodes = nodes
        self._name = name
        self._view = RateLimits()
        """The limits with the changes that are not written."""
        self._stored = RateLimits()
        """The limits in the document, without changes that are not written."""
        self._version = 0
        self._seen_at = -math.inf
        self._was_live = False
        """Whether the limits of the document still have to be copied to ``local``."""
        self._ahead_s = 0.0
        """The store's time minus the event loop's time."""
        self._changes: list[_Change] = []
        """The changes that are not written."""
        self._writing = False
        self._hurry = asyncio.Event()
        self._time = asyncio.get_running_loop().time

    @property
    def _is_live(self) -> bool:
        return self._seen_at > self.nodes.failed_at

    @property
    def _in_force(self) -> RateLimits:
        """The limits that hold now."""
        if self._is_live:
            return self._view
        if self._was_live:
            self._was_live = False
            if self._view.known:
                self.local.copy_from(self._view)
        return self.local

    # --- asking and counting ----------------------------------------------------------------

    async def try_take(self, tokens: int, waiting: int | None = None) -> Counted | None:
        """Count a call, if it fits now; None: the store cannot be asked.

        ``waiting`` calls are in the queue before it; None: it is the first one of the queue.
        """
        now = self._time()
        if now < self.nodes.failed_at + AFTER_FAILURE_S:
            return None
        view = self._view
        if self._is_live and not view.known:
            # Counted for the case that another node knows a limit.
            return self._count(_TakenCall(tokens), now)
        if self._is_live and now < self._seen_at + FRESH_S:
            if waiting and (wait_s := view.ready_in_s(tokens, now, 1 + waiting)) > 0.0:
                return Counted(wait_s)
            unwritten = [each.tokens for each in self._changes if isinstance(each, _TakenCall)]
            fits = view.fits_share(len(unwritten) + 1, sum(unwritten) + tokens, AHEAD, now)
            if fits and waiting is not None:
                return self._count(_TakenCall(tokens), now)
        answer: asyncio.Future[Counted | None] = asyncio.get_running_loop().create_future()
        call = _TakenCall(tokens, answer, 1 + (waiting or 0))
        self._change(call, soon=True)
        self._hurry.set()
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and call.taken:
                self.cancel(tokens, self._time())
            raise

    def _count(self, call: _TakenCall, now: float) -> Counted:
        """Count a call that is made before it is written."""
        call(self._view, now)
        self._change(call, soon=False)
        return Counted(taken=call.taken)

    def take(self, tokens: int, now: float) -> Taken:
        """Count a call of a node that is on its own."""
        return self._in_force.take(tokens, now)

    def cancel(self, tokens: int, now: float) -> None:
        """Undo ``try_take``: the call was not made."""
        self._return(lambda limits, at: limits.cancel(tokens, at), now)

    def give_back(self, tokens: int, now: float) -> None:
        """Give back the tokens of a call that was refused."""
        if tokens:
            self._return(lambda limits, at: limits.give_back(tokens, at), now)

    def _return(self, change: _Change, now: float) -> None:
        change(self._in_force, now)
        if self._is_live:
            self._change(change, soon=False)

    def learn(
        self,
        headers: Headers,
        now: float,
        unix: float,
        taken: Taken = NOTHING_TAKEN,
        windows: Sequence[LimitWindow] | None = None,
        *,
        began: float | None = None,
    ) -> bool:
        """Learn the limits that the headers of an answer name, for all nodes."""
        if not self._is_live:
            return self._in_force.learn(headers, now, unix, taken, began=began)
        windows = limit_windows(headers, unix) if windows is None else windows
        if not windows:
            return False
        began = now if began is None else began

        def change(limits: RateLimits, at: float) -> bool:
            return limits.learn(headers, at, unix, taken, windows, began=began)

        told_tokens = change(self._view, now)
        if not self._stored.known:
            self._hurry.set()  # other nodes must learn of the first limit soon
        self._change(change, soon=self._view.allowance(now) < 0.5)
        return told_tokens

    def learn_refusal(self, pause_s: float, began: float, now: float) -> None:
        """Learn the rate of a provider that tells no limit, for all nodes."""
        self._in_force.learn_refusal(pause_s, began, now)
        if self._is_live:
            self._hurry.set()
            self._change(lambda limits, at: limits.learn_refusal(pause_s, began, at), soon=True)

    # --- reading ----------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """A limit is known to any node."""
        return self._in_force.known

    @known.setter
    def known(self, value: bool) -> None:
        pass  # the constructor of the base class sets it; here it is computed

    def needs_headers(self, now: float) -> bool:
        """Tell whether to ``learn`` from an answer."""
        return self._in_force.needs_headers(now)

    def ready_in_s(self, tokens: int, now: float, calls: int = 1, *, reserve: float = 0.0) -> float:
        """Return the seconds until ``calls`` of ``tokens`` fit."""
        return self._in_force.ready_in_s(tokens, now, calls, reserve=reserve)

    def allowance(self, now: float) -> float:
        """Return the share that is left of the tightest limit."""
        return self._in_force.allowance(now)

    # --- writing ----------------------------------------------------------------------------

    def _change(self, change: _Change, *, soon: bool) -> None:
        self._changes.append(change)
        if not self._writing:
            self._writing = True
            self.nodes.spawn(self._write, WRITE_SOON_S if soon else self._write_s())

    def _write_s(self) -> float:
        if not self._view.known:
            return WRITE_UNKNOWN_S
        return WRITE_SOON_S if self._view.allowance(self._time()) < 0.5 else WRITE_S

    async def _write(self, within_s: float) -> None:
        """Write the changes, until there are none."""
        changes: list[_Change] = []
        try:
            while self._changes:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within_s):
                        await self._hurry.wait()
                self._hurry.clear()
                changes, self._changes = self._changes, []
                try:
                    await self._write_changes(changes)
                except StoreError:
                    self._fail(changes)
                changes = []
                within_s = self._write_s()
        except BaseException:
            self._fail(changes)
            raise
        finally:
            self._writing = False

    async def _write_changes(self, changes: Sequence[_Change]) -> None:
        """Apply the changes to the newest document, and write it. Raises StoreError."""
        for _ in range(MOST_TRIES):
            began = self._time()
            limits = RateLimits()
            limits.copy_from(self._stored)
            for change in changes:
                change(limits, began)
            value = self._encode(limits) if limits.known else b""
            found = await self.nodes.store.swap(self._name, self._version, value, KEPT_S)
            now = self._time()
            self._version, self._ahead_s = found.version, found.now - (began + now) / 2
            if found.written or not (value or found.value):
                break
            self._load(found.value)
        else:
            raise StoreError("other nodes write the limits all the time")
        self._stored, self._seen_at, self._was_live = limits, now, True
        self._view.copy_from(limits)
        for change in self._changes:
            if not isinstance(change, _TakenCall) or change.answer is None:
                change(self._view, now)
        for change in changes:
            if isinstance(change, _TakenCall) and change.answer is not None:
                if not change.answer.cancelled():
                    change.answer.set_result(Counted(change.wait_s, change.taken))
                elif change.taken:
                    self.cancel(change.tokens, now)

    def _fail(self, changes: Sequence[_Change]) -> None:
        """Go on alone: let the calls that wait ask this node's own limits."""
        self.nodes.failed_at = max(self.nodes.failed_at, self._time())
        waiting, self._changes = (*changes, *self._changes), []
        for change in waiting:
            if isinstance(change, _TakenCall) and change.answer and not change.answer.done():
                change.answer.set_result(None)

    def _encode(self, limits: RateLimits) -> bytes:
        """Return limits as a document."""
        return msgspec.msgpack.encode(_shifted(limits.saved(), limits.levels, self._ahead_s))

    def _load(self, document: bytes) -> None:
        """Take over a document. A lost or damaged one, or one of another version, is replaced."""
        try:
            saved, levels = _decoder.decode(document)
        except UNDECODABLE:
            return
        saved, levels = _shifted(saved, levels, -self._ahead_s)
        if are_possible(saved, levels, self._time()):
            self._stored.restore(saved)
            self._stored.levels = levels


def _shifted(
    saved: SavedLimits, levels: Sequence[float], seconds: float
) -> tuple[SavedLimits, list[float]]:
    """Return limits with all their times on another clock."""
    shifted = {}
    for name, each in saved.items():
        first = each.first._replace(at=each.first.at + seconds)
        shifted[name] = each._replace(believed_until=each.believed_until + seconds, first=first)
    return shifted, [
        number if place % 3 == 1 else number + seconds for place, number in enumerate(levels)
    ]
