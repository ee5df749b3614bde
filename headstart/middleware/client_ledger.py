"""Enforces the limits of client keys: reserves before a call is sent, settles after it.

The usage is in counters of the store. So all workers and nodes count together, and nothing is lost
by a restart or a reload. The steps for one request of a caller with limits:

1. ``admit`` checks the model, and counts the request against the requests of this minute. It takes
   several requests at a time from the store, and admits them without asking again.
2. ``reserve``, before each call to an upstream, adds the most that the call may use to the counter
   of each limit of tokens or dollars. If one of them would exceed its limit, none is added, and the
   call is refused.
3. ``Reservation.settle``, after the call, replaces the reservation by the real usage;
   ``release`` gives it back if the call was not made. Both only note a correction.
4. A background task writes the corrections to the store, and tries again until it takes them.

For example, a key has 1,000 tokens a minute. A call with a prompt of 100 tokens and at most 500
tokens of output reserves 600, so a second call like it is refused. The answer has 50 tokens: the
correction is -450, the counter has 150, and a call of 600 tokens passes again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headstart.errors import Forbidden, LimitsUnavailable, ModelForbidden, OverLimit, StoreError
from headstart.observe import Observer, StageFailed, logger
from headstart.policies.callers import (
    KEPT_S,
    PARTS_OF_A_MINUTE,
    WARN_AT,
    Allowance,
    Headroom,
    Usage,
    allows_model,
    clock_time,
    most_usage,
    refusal,
    reservations,
    shown,
    spending,
    window,
)
from headstart.policies.routing.rate_limits import tells_limit
from headstart.types import Call, Charge, Charged, ChatRequest, LimitUse, Message, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.attempts import Attempt
    from headstart.dialects.dialect import LimitHeaders
    from headstart.interfaces import Store
    from headstart.middleware.concurrency import Spawn
    from headstart.policies.cost import Price
    from headstart.settings import ClientLimits

RETRY_S = 1.0
"""Time until a failed settlement is tried again."""
SETTLES_S = 5.0
"""Longest wait at the end for the counts of the last calls."""
_NO_COUNTERS = (
    "the store that counts what this API key uses (cache.store) does not answer or takes no "
    "writes, so no call can be charged to it; try again"
)


_ALTERNATIVES = ("models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks")
"""Fields of requests in which some providers read the names of other models."""


def _models_in(value: object) -> Iterator[str]:
    """Yield the models that a field names: as a text, in a list, or in an object."""
    if isinstance(value, list):
        for each in value:
            yield from _models_in(each)
    elif isinstance(value, dict):
        model = value.get("model")
        for each in value.values() if model is None else (model,):
            yield from _models_in(each)
    elif value is not None:
        yield str(value)


class _Caller(NamedTuple):
    limits: ClientLimits
    spending: tuple[Allowance, ...]
    """The allowances to which its calls are charged: dollars and tokens, each for a period."""


def _refuse_unknown(found: _Caller, caller: str, what: str, model: str) -> None:
    """Refuse a call whose cost or model is limited but not known. Raises Forbidden."""
    limits, allowances = found
    if limits.unknown_cost == "allow":
        return
    hint = f'server.client_limits.{caller}.unknown_cost = "allow" lets them pass'
    if allowances:
        raise Forbidden(
            f"the cost of {what} is not known, and this API key has a limit of dollars or tokens; "
            + hint
        )
    if not model and limits.models != ("*",):
        raise Forbidden(
            f"the model of {what} is not known, and this API key may use only some models; {hint}"
        )


def _refuse_unpriced(limits: ClientLimits, caller: str, model: str) -> None:
    """Refuse a model without a price to a caller with a limit of dollars. Raises Forbidden."""
    in_dollars = limits.usd_per_day is not None or limits.usd_per_month is not None
    if in_dollars and limits.unknown_cost == "refuse":
        raise Forbidden(
            f"no price is known of the model {model!r}, so it cannot be charged to this API "
            "key, which has a limit of dollars; set the price of the upstream, or "
            f'server.client_limits.{caller}.unknown_cost = "allow"'
        )


@dataclass(slots=True, eq=False, repr=False)
class Reservation:
    """The most that one upstream call may use, until ``settle`` counts its real usage."""

    ledger: ClientLedger
    caller: str
    allowances: Sequence[Allowance]
    charges: Sequence[Charge]
    _counted: list[int] = field(init=False)
    """The amount that each counter has for this call: at first the reservation."""
    _holds: bool = False
    """The ledger counts the charges among the reservations of calls in flight."""

    def __post_init__(self) -> None:
        self._counted = [each.amount for each in self.charges]

    def hold(self) -> None:
        """Note that the charges were added: they are reserved until the call is settled."""
        self._holds = True
        self.ledger.hold(self.charges)

    def settle(self, attempt: Attempt) -> None:
        """Count the usage of a booked call. A later booking replaces an earlier one."""
        tokens = attempt.prompt_tokens + attempt.completion_tokens
        self._count(Usage(attempt.cost_usd or 0.0, tokens))

    def release(self) -> None:
        """Give the reservation back, because the call was not made."""
        self._count(Usage(0.0, 0))

    def _count(self, usage: Usage) -> None:
        """Correct each counter by the difference between this usage and what it has now."""
        if self._holds:
            self._holds = False
            self.ledger.let_go(self.charges)
        for place, allowance in enumerate(self.allowances):
            amount, counted = usage.amount(allowance), self._counted[place]
            if amount != counted:
                self._counted[place] = amount
                charge = self.charges[place]._replace(amount=amount - counted, most=None)
                self.ledger.correct(_Correction(self.caller, allowance, charge))


class _Correction(NamedTuple):
    """An amount, mostly negative, to add to a counter without checking its limit."""

    caller: str
    allowance: Allowance
    charge: Charge


class _MinutePart:
    """Requests of one minute that this process may admit without asking the store."""

    __slots__ = ("admitted", "label", "left", "lock", "rest")

    def __init__(self, label: str) -> None:
        self.label = label
        """The minute."""
        self.left = 0
        """The requests that this process may still admit."""
        self.admitted = 0
        """The requests that it has admitted."""
        self.rest = 0
        """The requests that no process had taken when the store was last asked."""
        self.lock = asyncio.Lock()
        """Held while the store is asked for more."""


async def limit_uses(
    callers: Mapping[str, Sequence[Allowance]], store: Store, now: float
) -> list[LimitUse]:
    """Return how much of their limits callers have used, by name of their keys.

    ``now`` is in Unix seconds. Raises StoreError.
    """
    limited = [
        (caller, each, each.most, each.charge(caller, 0, now))
        for caller, spent in callers.items()
        for each in spent
        if each.most is not None
    ]
    if not limited:
        return []
    charged = await store.charge([charge for *_, charge in limited])
    return [
        LimitUse(
            caller=caller,
            limit=allowance.setting,
            used=max(0.0, value / allowance.unit),
            most=most / allowance.unit,
            resets_at=window(allowance.period, now).ends,
        )
        for (caller, allowance, most, _), value in zip(limited, charged.values, strict=True)
    ]


@dataclass(eq=False, repr=False)
class ClientLedger:
    """Counts the usage of client limits, by the names of the keys. ``clock`` gives Unix seconds.

    Call ``aclose`` before the store closes.
    """

    limits: Mapping[str, ClientLimits]
    _: KW_ONLY
    store: Store
    clock: Callable[[], float]
    spawn: Spawn
    observer: Observer
    _parts: dict[str, _MinutePart] = field(default_factory=dict)
    _corrections: dict[str, _Correction] = field(default_factory=dict)
    """The corrections to settle, by counter."""
    _settling: asyncio.Task[None] | None = None
    _closing: bool = False
    _held: Counter[str] = field(default_factory=Counter)
    """The reservations of calls of this process, by counter."""
    _warned: set[tuple[str, str]] = field(default_factory=set)
    _tokens: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each caller, the last minute in which tokens were counted, and their number."""
    _callers: dict[str, _Caller] = field(init=False)

    def __post_init__(self) -> None:
        found = self.limits.items()
        self._callers = {name: _Caller(each, spending(each)) for name, each in found}

    def allows(self, caller: str, model: str) -> bool:
        """Tell whether a caller may ask for a model."""
        found = self._callers.get(caller)
        return found is None or allows_model(found.limits, model)

    async def admit(self, caller: str, *models: str) -> None:
        """Admit a request that any of these models may answer.

        Raises ModelForbidden, or OverLimit after too many in this minute.
        """
        found = self._callers.get(caller)
        if found is None:
            return
        for model in models:
            if not allows_model(found.limits, model):
                raise ModelForbidden(
                    f"this API key may not use the model {model!r}: the setting "
                    f"server.client_limits.{caller}.models does not name it"
                )
        if found.limits.requests_per_minute is not None:
            await self._count_request(caller, found.limits.requests_per_minute)

    async def admit_request(self, caller: str, request: ChatRequest | None) -> None:
        """Admit a request; None: it cannot be read. Raises as ``admit``, and Forbidden.

        If a JSON key occurs twice, the provider may read another model, or another limit, than we
        do.
        """
        found = self._callers.get(caller)
        if found is None:
            return
        if request is None:
            _refuse_unknown(found, caller, "requests that cannot be read here", "")
            return await self.admit(caller)
        if request.duplicate_keys:
            _refuse_unknown(found, caller, "requests that repeat a JSON key", "")
        document = request.document
        named = [named for field in _ALTERNATIVES for named in _models_in(document.get(field))]
        await self.admit(caller, request.model, *named)

    async def admit_relayed(self, call: Call, *, is_free: bool) -> None:
        """Admit a relayed request. Its cost is not known unless it is free.

        Raises OverLimit, ModelForbidden or Forbidden.
        """
        found = self._callers.get(call.caller)
        if found is None:
            return
        if not is_free:
            _refuse_unknown(found, call.caller, "calls to this path", call.model)
        await self.admit(call.caller, *filter(None, (call.model,)))

    async def reserve(
        self,
        call: Call,
        model: str,
        price: Price | None,
        *,
        is_free: bool,
        prompt: int,
        completion: int | None,
        answers: int = 1,
    ) -> Reservation | None:
        """Reserve the most that a call may use; None if nothing limits it.

        ``prompt`` and ``completion`` are the largest numbers of tokens; None: the caller set no
        limit. ``answers`` is the number of answers that it asks for. ``is_free``: the upstream
        sends no bill. Raises OverLimit, Forbidden or LimitsUnavailable.
        """
        found = self._callers.get(call.caller)
        if found is None or not found.spending or call.relayed:
            return None
        limits, allowances = found
        if price is None and not is_free:
            _refuse_unpriced(limits, call.caller, model)
        if completion is None:
            completion = limits.output_reserve
        now = self.clock()
        usage = most_usage(price, prompt, completion * answers)
        charges = reservations(allowances, call.caller, usage, now)
        reservation = Reservation(self, call.caller, allowances, charges)
        try:
            charged = await self._charge(reservation)
            if not charged.added and self._settling is not None:
                # Calls that have just ended give back unused reservations.
                await asyncio.wait((self._settling,), timeout=RETRY_S)
                charged = await self._charge(reservation)
        except StoreError as error:
            what, hour = f"counters: {error}", f"{now // 3600}"
            self._log_once(what, hour, f"calls of client keys with limits get 503: {error}")
            raise LimitsUnavailable(_NO_COUNTERS) from error
        for allowance, charge, value in zip(allowances, charges, charged.values, strict=True):
            self._note_tokens(call.caller, allowance, charge, value)
        if not charged.added:
            raise self._refusal(reservation, charged, now)
        reservation.hold()
        return reservation

    def _refusal(self, reservation: Reservation, charged: Charged, now: float) -> OverLimit:
        """Return the error of a reservation that a limit refuses. Log it if it lasts."""
        allowances, charges = reservation.allowances, reservation.charges
        refused = refusal(allowances, charges, charged, now, self._held.__getitem__)
        if refused.lasts:
            ends = clock_time(self.clock() + refused.retry_after_s)
            text = f"a call of client key {reservation.caller} gets 429: {refused}"
            self._log_once(f"{reservation.caller} refused", ends, text)
        return refused

    async def _charge(self, reservation: Reservation) -> Charged:
        """Add the charges of a reservation. They are given back if the caller leaves meanwhile.

        A task of its own asks the store. If the caller is cancelled, the task still learns whether
        the charges were added, and so whether to give them back.
        """
        answer: asyncio.Future[Charged] = asyncio.get_running_loop().create_future()
        self.spawn(self._charge_for, reservation, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None and answer.result().added:
                reservation.release()
            raise

    async def _charge_for(self, reservation: Reservation, answer: asyncio.Future[Charged]) -> None:
        try:
            charged = await self.store.charge(reservation.charges)
        except Exception as error:  # noqa: BLE001 - the caller gets the error
            if not answer.cancelled():
                answer.set_exception(error)
            return
        if not answer.cancelled():
            answer.set_result(charged)
        elif charged.added:
            reservation.release()

    async def _count_request(self, caller: str, most: int) -> None:
        """Count a request against this minute. Raises OverLimit."""
        allowance, now = Allowance("requests", "minute", most), self.clock()
        label = window("minute", now).label
        part = self._parts.get(caller)
        if part is None or part.label != label:
            part = self._parts[caller] = _MinutePart(label)
        if not part.left:
            async with part.lock:
                if not part.left:
                    part.left = await self._take_part(part, allowance, caller, now)
        part.left -= 1
        part.admitted += 1

    async def _take_part(
        self, part: _MinutePart, allowance: Allowance, caller: str, now: float
    ) -> int:
        """Return a number of requests that may come in. Raises OverLimit if none may.

        It takes a twentieth of the limit from the store, or the rest if that is less. Without the
        store this process counts alone, and takes one request at a time.
        """
        most = allowance.most or 0
        wanted = max(1, most // PARTS_OF_A_MINUTE)
        while True:
            charge = allowance.charge(caller, wanted, now)
            try:
                charged = await self.store.charge([charge])
            except StoreError as error:
                self.observer.notify(StageFailed.of("limits", error))
                if part.admitted < most:
                    part.rest = most - part.admitted - 1
                    return 1
                charged = Charged(added=False, values=(most,))
            part.rest = max(0, most - charged.values[0])
            if charged.added:
                return wanted
            wanted = min(wanted, part.rest)
            if wanted <= 0:
                raise refusal([allowance], [charge], charged, now)

    def hold(self, charges: Sequence[Charge]) -> None:
        """Note the reservation of a call in flight."""
        for each in charges:
            self._held[each.counter] += each.amount

    def let_go(self, charges: Sequence[Charge]) -> None:
        """Note that a call has given up its reservation."""
        for each in charges:
            self._held[each.counter] -= each.amount
            if not self._held[each.counter]:
                del self._held[each.counter]

    def correct(self, correction: _Correction) -> None:
        """Add to a counter, in the background."""
        counter = correction.charge.counter
        waiting = self._corrections.get(counter)
        if waiting is not None:
            amount = waiting.charge.amount + correction.charge.amount
            correction = correction._replace(charge=waiting.charge._replace(amount=amount))
        self._corrections[counter] = correction
        if self._settling is None:
            self._settling = self.spawn(self._settle)

    async def _settle(self) -> None:
        """Write the corrections until none is left. A failed one is tried again."""
        try:
            while self._corrections:
                taken, self._corrections = tuple(self._corrections.values()), {}
                try:
                    charged = await self.store.charge([each.charge for each in taken])
                except StoreError as error:
                    for each in taken:
                        self.correct(each)
                    self.observer.notify(StageFailed.of("limits", error))
                    if self._closing:
                        return
                    await asyncio.sleep(RETRY_S)
                else:
                    for each, value in zip(taken, charged.values, strict=True):
                        self._warn(each, value)
                        self._note_tokens(*each, value)
        finally:
            self._settling = None

    def _note_tokens(self, caller: str, allowance: Allowance, charge: Charge, used: int) -> None:
        """Note the tokens that the store has counted in a minute, unless a later one is noted."""
        if allowance.measure == "tokens" and allowance.period == "minute":
            label = charge.counter.rpartition("/")[2]
            if label >= self._tokens.get(caller, ("", 0))[0]:
                self._tokens[caller] = (label, used)

    def with_limit_headers(self, send: Send, caller: str, form: LimitHeaders | None) -> Send:
        """Return a ``send`` that adds headers with the rest of the caller's limits.

        They replace the headers of the provider, whose limits are not the caller's. A caller
        without limits gets ``send`` itself.
        """
        found = self._callers.get(caller)
        if found is None:
            return send
        limits = found.limits

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if not tells_limit[pair[0]]]
                if form is not None:
                    headers += self._limit_headers(caller, limits, form)
                message = {**message, "headers": headers}
            await send(message)

        return sending

    def _limit_headers(
        self, caller: str, limits: ClientLimits, form: LimitHeaders
    ) -> Iterator[tuple[bytes, bytes]]:
        now = self.clock()
        for unit, most, left, ends in self._headroom(caller, limits, now):
            told = {"limit": most, "remaining": left, "reset": form.reset(now, ends)}
            for part, value in told.items():
                yield form.name.format(unit=unit, part=part).encode(), str(value).encode()

    def _headroom(self, caller: str, limits: ClientLimits, now: float) -> Iterator[Headroom]:
        """Yield the rest of the limits of this minute, as far as this process knows."""
        label, ends = window("minute", now)
        if (most := limits.requests_per_minute) is not None:
            part = self._parts.get(caller)
            left = most
            if part is not None and part.label == label:
                left = part.left + part.rest
            yield Headroom("requests", most, left, ends)
        if (most := limits.tokens_per_minute) is not None:
            counted, used = self._tokens.get(caller, ("", 0))
            left = max(0, most - used) if counted == label else most
            yield Headroom("tokens", most, left, ends)

    def _warn(self, settled: _Correction, used: int) -> None:
        """Log once a day or a month that most of a limit is used."""
        caller, allowance, charge = settled
        if allowance.most is None or allowance.period == "minute":
            return
        if used >= WARN_AT * allowance.most:
            until = clock_time(charge.expires - KEPT_S)
            self._log_once(
                f"{caller} {allowance.setting}",
                until,
                f"client key {caller} has used {used / max(1, allowance.most):.0%} of its "
                f"{allowance.setting} ({shown(allowance, used)} of "
                f"{shown(allowance, allowance.most)}, with calls in flight) until {until}",
            )

    def _log_once(self, what: str, until: str, text: str) -> None:
        if (what, until) not in self._warned:
            # Notes of the last day or month are not needed any more.
            self._warned = {each for each in self._warned if each[0] != what} | {(what, until)}
            logger.warning("%s", text)

    async def uses(self) -> list[LimitUse]:
        """Return the used part of the limits of days, months and minutes. Raises StoreError."""
        spending = {name: found.spending for name, found in self._callers.items()}
        return await limit_uses(spending, self.store, self.clock())

    async def aclose(self) -> None:
        """Settle the rest, unless the store hangs."""
        self._closing = True
        if self._settling is not None:
            await asyncio.wait((self._settling,), timeout=SETTLES_S)
