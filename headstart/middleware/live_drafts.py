"""Live drafts: a client sends its prompt while it is being typed, so that the answer begins early.

For example::

    POST /v1/live      {"request": {"messages": [{"role": "user", "content": "{{draft}}"}], …}}
    PUT  /v1/live/ID   {"rev": 1, "text": "How do I"}
    PUT  /v1/live/ID   {"rev": 2, "text": "How do I boil an egg?"}
    POST /v1/chat/completions, the ordinary call, with the header "x-headstart-live: ID"

A WebSocket at ``/v1/live`` takes the place of the first three. The life of a draft:

1. ``_open`` checks the request and keeps a ``PromptDraft``, in the memory of this process. It
   belongs to its caller, is never logged, and ends two minutes after its last revision.
2. ``_revise`` takes a revision. It stops the work on the revision before, and starts ``_follow``.
3. ``_follow`` runs the stages that are on, each only if it pays: fill the provider's prompt cache
   (``_warm``), look the text up in the cache, ask for inferences (``_infer``), and make the whole
   call before the client asks for it (``_call``).
4. ``take_call`` ends the draft when the ordinary call comes. If the texts are equal, the call that
   was made early answers it.

The cost of an early call is taken from the draft's budget, and its expected waste from the account
of the caller (``WasteAccount``). Both are reserved when the call begins (``_begin``), and settled
when it ends. ``docs/live-drafts.md`` describes the stages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from headstart.decisions import Outcome
from headstart.dialects.responses_chains import may_refer
from headstart.errors import (
    HeadstartError,
    InvalidRequest,
    Overloaded,
    RequestError,
    RequestTooLarge,
    UnknownReference,
)
from headstart.middleware.body import body_too_large, read_body
from headstart.middleware.endpoints import EndpointTable, MatchedEndpoint, raw_path
from headstart.middleware.request_context import KeptCall, RequestContext
from headstart.middleware.respond import (
    JSON,
    NO_STORE,
    answer_handshake,
    error_response,
    send_whole,
)
from headstart.middleware.websocket_relay import with_key_header
from headstart.observe import Observer, logger
from headstart.policies.agreement.judge import answer_text
from headstart.policies.live_drafts import (
    INFER_TOKENS,
    MOST_TEXT,
    DraftTemplate,
    Inference,
    Trigger,
    TriggerUse,
    WasteAccount,
    ending,
    expected_waste,
    inference_prompt,
    kept_inferences,
    next_segment,
    read_inference,
    read_template,
    refuse_call,
    refuse_cost,
    refuse_warming,
    same_prompt,
    submitted_text,
    with_inferences,
)
from headstart.settings import LiveStage  # noqa: TC001 - msgspec reads it
from headstart.sockets import GOING_AWAY
from headstart.types import UNDECODABLE, Headers, Latest, Receive, Scope, Send

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.attempts import RoutingEstimate
    from headstart.middleware.concurrency import ConcurrencyLimit
    from headstart.middleware.pipeline import Engine
    from headstart.settings import LiveSettings, ServerSettings

PATH = b"/v1/live"
_PATH = re.compile(rb"/v1/live(?:/([\w-]{1,64}))?")
LOOKUP_PAUSE_S = 0.2
"""A text is looked up after this many seconds without a change, or at once at the end of a
sentence."""
MOST_ACCOUNTS = 1024
"""The number of callers whose accounts of wasted calls are kept."""
MOST_BYTES = 256 * 1024 * 1024
"""The most bytes of the requests of all drafts together."""
WARM_TOKENS = 16
"""The limit on the answer of a call that only fills the prompt cache. Some models refuse lower
limits."""
_NOT_OF_CALL = frozenset(
    (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding", b"expect")
)
"""Headers of the request that opens a draft, which its calls do not get."""
_HANDSHAKE = b"sec-websocket-"
"""The beginning of the names of headers that only a handshake has."""

Purpose: TypeAlias = Literal["answer", "warm", "inference"]
"""Why a call is made early: to answer the final call, to fill the provider's prompt cache, or to
ask for an inference."""


class _Opening(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/live``, and the first message of a WebSocket."""

    request: msgspec.Raw
    path: str = "/v1/chat/completions"
    stages: tuple[LiveStage, ...] | None = None
    budget_usd: float | None = None
    type: Literal["open"] = "open"


class _Revision(msgspec.Struct, forbid_unknown_fields=True):
    """A revision of the text."""

    rev: int
    text: str
    type: Literal["draft", "cancel"] = "draft"


class DraftState(msgspec.Struct, frozen=True, omit_defaults=False):
    """The state of a draft for its client."""

    id: str
    rev: int
    cache: Literal["unknown", "hit", "miss", "off"]
    """Whether the cache has the answer to the text of ``rev``."""
    warm: str
    """``none``, ``running``, ``done``, or why the prompt cache is not filled."""
    answer: str
    """``none``, ``running``, ``done``, or why no call is made early."""
    spent_usd: float


@dataclass(eq=False, repr=False)
class PromptDraft:
    """One prompt that is being written."""

    id: str
    owner: str
    """The caller that began it."""
    scope: Scope
    """The ASGI scope of its calls."""
    endpoint: MatchedEndpoint
    template: DraftTemplate
    """The request, with a place for the text."""
    _: KW_ONLY
    stages: frozenset[LiveStage]
    size: int
    """Bytes of its request."""
    account: WasteAccount
    """The account of its caller."""

    # The last revision
    rev: int = -1
    """The number of the last revision; -1 before the first one."""
    text: str = ""
    cache: Literal["unknown", "hit", "miss", "off"] = "unknown"
    warm: str = "none"
    answer: str = "none"
    """``cache``, ``warm`` and ``answer`` are as in ``DraftState``."""
    work: asyncio.Task[None] | None = None
    """Runs the stages of the last revision."""

    # Its early calls
    kept: KeptCall | None = None
    """The call that answers the last revision."""
    warming: KeptCall | None = None
    """The call that fills the provider's prompt cache."""
    inferring: KeptCall | None = None
    """The call that asks for inferences."""
    inferences: list[Inference] = field(default_factory=list)
    calls: int = 0
    """The number of calls for whole texts so far."""

    # Their costs
    budget_usd: float | None
    """What the client lets it spend; None: the limits of the stages count alone."""
    spent_usd: float = 0.0
    """The cost of the calls that have ended."""
    reserved_usd: float = 0.0
    """The estimated cost of the calls that have not ended."""
    wasted_usd: float = 0.0
    """The cost of its unused calls, until it ends."""

    # Its end
    over: bool = False
    """Whether the draft has ended."""
    ends: asyncio.TimerHandle | None = None
    """Ends the draft if no revision comes."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the state changed, for the WebSocket."""

    def state(self) -> DraftState:
        """Return its state."""
        return DraftState(self.id, self.rev, self.cache, self.warm, self.answer, self.spent_usd)

    def left_usd(self, limit_usd: float) -> float:
        """Return the dollars that a stage with a limit may still spend."""
        most = limit_usd if self.budget_usd is None else min(limit_usd, self.budget_usd)
        return most - self.spent_usd - self.reserved_usd

    def change(self, **changes: Any) -> None:
        """Change parts of the state."""
        for name, value in changes.items():
            setattr(self, name, value)
        self.changed.set()


@dataclass(eq=False, repr=False)
class LiveDrafts:
    """Keeps the drafts of this process, and runs for each revision the stages that pay.

    ``endpoints`` finds the dialect of a path. ``new_id`` returns ids that cannot be guessed.
    ``sockets`` bounds the number of open WebSockets. ``limits`` has the time limits of WebSockets
    and the size limits of bodies.
    """

    settings: LiveSettings
    engine: Engine
    endpoints: EndpointTable
    _: KW_ONLY
    observer: Observer
    clock: Callable[[], float]
    new_id: Callable[[], str]
    sockets: ConcurrencyLimit
    limits: ServerSettings
    _drafts: dict[str, PromptDraft] = field(default_factory=dict)
    _size: int = 0
    _accounts: Latest[str, WasteAccount] = field(default_factory=lambda: Latest(MOST_ACCOUNTS))
    _use: TriggerUse = field(default_factory=TriggerUse)

    # --- HTTP and WebSocket ----------------------------------------------------------------------

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request to ``/v1/live``, or return False for another path."""
        match = _PATH.fullmatch(raw_path(scope))
        if match is None:
            return False
        try:
            status, state = await self._handle(scope, receive, match[1])
        except (RequestError, HeadstartError) as error:
            refused, headers, body = error_response(error, None, self.new_id())
            await send_whole(send, refused, headers, body)
            return True
        body = b"" if state is None else msgspec.json.encode(state)
        lines: Headers = ((b"content-length", b"%d" % len(body)), NO_STORE)
        if body:
            lines = ((b"content-type", JSON), *lines)
        await send_whole(send, status, lines, body)
        return True

    async def _handle(
        self, scope: Scope, receive: Receive, id: bytes | None
    ) -> tuple[int, DraftState | None]:
        owner, method = self._owner(scope), scope["method"]
        if id is None:
            if method != "POST":
                raise InvalidRequest("begin a draft with POST /v1/live")
            opening = _decoded(await self._body(scope, receive), _Opening)
            return 201, self._open(owner, scope, opening).state()
        draft = self._find(owner, id.decode())
        match method:
            case "PUT":
                self._revise(draft, _decoded(await self._body(scope, receive), _Revision))
                return 202, draft.state()
            case "DELETE":
                self._close(draft)
                return 204, None
            case "GET":
                return 200, draft.state()
        raise InvalidRequest("a draft takes PUT, GET and DELETE")

    async def socket(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Serve a WebSocket at ``/v1/live``, or return False for another path.

        The draft ends with the connection, unless the final call has taken it over.
        """
        if raw_path(scope) != PATH:
            return False
        await receive()  # websocket.connect
        own = [pair for pair in with_key_header(scope) if not pair[0].startswith(_HANDSHAKE)]
        of_call = {**scope, "method": "GET", "headers": own}
        try:
            owner = self._owner(of_call)
            if not self.sockets.take():
                raise Overloaded("too many WebSockets are open: server.max_websockets is reached")
        except HeadstartError as error:
            await answer_handshake(scope, send, *error_response(error, None, self.new_id()))
            return True
        try:
            await send({"type": "websocket.accept"})
            async with asyncio.timeout(self.limits.websocket_deadline_s):
                await self._talk(owner, of_call, receive, send)
        except TimeoutError:
            with contextlib.suppress(Exception):  # the client may be gone
                await send({"type": "websocket.close", "code": GOING_AWAY})
        finally:
            self.sockets.give_back()
        return True

    async def _talk(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the messages of a WebSocket until it closes. Raises TimeoutError if it is silent."""
        draft: PromptDraft | None = None
        states_task: asyncio.Task[None] | None = None
        idle_s = self.limits.websocket_idle_s
        try:
            while True:
                async with asyncio.timeout(idle_s):
                    message = await receive()
                if message["type"] != "websocket.receive":
                    return
                data = message.get("text") or message.get("bytes") or b""
                if draft is None:
                    draft = self._open(owner, scope, _decoded(data, _Opening))
                    states_task = self.engine.spawn(_send_states, draft, send)
                    continue
                revision = _decoded(data, _Revision)
                self._find(owner, draft.id)  # the draft may have ended
                if revision.type == "cancel":
                    break
                self._revise(draft, revision)
            await send({"type": "websocket.close", "code": 1000})
        except HeadstartError as error:
            _, _, body = error_response(error, None, self.new_id())
            with contextlib.suppress(Exception):  # the client may be gone
                await send({"type": "websocket.send", "text": body.decode()})
                await send({"type": "websocket.close", "code": 1008})
        finally:
            if states_task is not None:
                states_task.cancel()
            if draft is not None:
                self._close(draft)

    def _owner(self, scope: Scope) -> str:
        owner = self.engine.admitted_owner(scope)
        if owner is None:
            raise InvalidRequest(
                "a draft belongs to its caller: send the same credentials as with the final call"
            )
        return owner

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit, patience_s = self.limits.max_body_bytes, self.limits.body_timeout_s
        body, fits, _ = await read_body(receive, limit, patience_s, scope["headers"])
        if not fits:
            raise body_too_large(limit)
        return body

    # --- drafts ----------------------------------------------------------------------------------

    def _open(self, owner: str, scope: Scope, opening: _Opening) -> PromptDraft:
        request = bytes(opening.request)
        self._check_room(len(request))
        path, _, query = opening.path.encode().partition(b"?")
        endpoint = self.endpoints.match("POST", path, query)
        if endpoint is None or endpoint.dialect is None or not endpoint.is_chat:
            raise InvalidRequest(f"path: {opening.path!r} is not a path of a chat API")
        self.engine.preparer.values.check(request)
        if may_refer(request):
            raise InvalidRequest("request: a draft cannot name an earlier answer by its id")
        stages = frozenset(self.settings.stages)
        if opening.stages is not None:
            stages = stages.intersection(opening.stages)
        draft = PromptDraft(
            self.new_id(),
            owner,
            _scope_of_call(scope, path, query),
            endpoint,
            read_template(request),
            stages=stages,
            budget_usd=opening.budget_usd,
            account=self._account(owner),
            size=len(request),
        )
        # Errors in the request are reported now, and not while the text is typed.
        context = self._context(draft, "?")
        self._drafts[draft.id] = draft
        self._size += draft.size
        self._prolong(draft)
        self.engine.connect_early(context)
        return draft

    def _check_room(self, size: int) -> None:
        """Raise Overloaded if there is no room for another draft with a request of this size."""
        if len(self._drafts) >= self.settings.max_drafts:
            raise Overloaded("too many live drafts are open: live.max_drafts is reached")
        if self._size + size > MOST_BYTES:
            raise Overloaded("the live drafts that are open take too much memory")

    def _context(self, draft: PromptDraft, text: str) -> RequestContext:
        """Return the context of a call with this text. Raises RequestError."""
        body = draft.template.body(text)
        return self.engine.draft(draft.scope, draft.endpoint, body, draft.id)

    def _account(self, owner: str) -> WasteAccount:
        account = self._accounts.get(owner) or WasteAccount(self.settings.max_extra_cost)
        self._accounts[owner] = account
        return account

    def _find(self, owner: str, id: str) -> PromptDraft:
        draft = self._drafts.get(id)
        if draft is None or draft.owner != owner:
            raise UnknownReference(
                f"there is no live draft with the id {id!r}", status=404, param=None
            )
        return draft

    def _prolong(self, draft: PromptDraft) -> None:
        if draft.ends is not None:
            draft.ends.cancel()
        loop = asyncio.get_running_loop()
        draft.ends = loop.call_later(self.settings.ttl_s, self._close, draft)

    def _revise(self, draft: PromptDraft, revision: _Revision) -> None:
        """Apply a revision. A revision that is not newer than the last one has no effect."""
        if len(revision.text) > MOST_TEXT:
            raise RequestTooLarge(f"text: at most {MOST_TEXT} characters")
        if revision.rev <= draft.rev:
            return
        self._prolong(draft)
        kept = draft.kept
        draft.change(rev=revision.rev, text=revision.text)
        if kept is not None and same_prompt(kept.text, revision.text):
            return
        self._stop(draft)
        draft.change(cache="unknown", answer="none")
        draft.work = self.engine.spawn(self._follow, draft)

    def _stop(self, draft: PromptDraft) -> None:
        """Stop the stages of the present revision, and drop the call that was made for it."""
        if draft.work is not None:
            draft.work.cancel()
            draft.work = None
        kept, draft.kept = draft.kept, None
        if kept is not None:
            self._let_go(draft, kept, used=False)

    def _close(self, draft: PromptDraft, *, asked: bool = False) -> None:
        """End a draft, and book the cost of its calls. ``asked``: the final request has come."""
        if self._drafts.pop(draft.id, None) is None:
            return
        self._size -= draft.size
        if draft.ends is not None:
            draft.ends.cancel()
        self._stop(draft)
        if not asked:
            draft.account.wasted(draft.wasted_usd)
        draft.over = True
        for kept in (draft.inferring, draft.warming):
            if kept is not None and not kept.flight.done:
                kept.flight.leave(kept.reader)
        draft.inferring = draft.warming = None
        draft.changed.set()

    async def aclose(self) -> None:
        """End all drafts."""
        for draft in tuple(self._drafts.values()):
            self._close(draft)

    # --- stages ----------------------------------------------------------------------------------

    async def _follow(self, draft: PromptDraft) -> None:
        """Run the stages that pay for the present revision."""
        trigger = ending(draft.text)
        try:
            if "warm" in draft.stages and draft.warm == "none":
                await self._warm(draft)
            if trigger is None:
                await asyncio.sleep(LOOKUP_PAUSE_S)
            context = self._context(draft, draft.text)
            if "lookup" in draft.stages:
                found = await self.engine.look_up_draft(context)
                draft.change(cache="off" if found is None else "hit" if found else "miss")
            if draft.cache == "hit":
                return
            if "infer" in draft.stages:
                await self._infer(draft)
            if "answer" not in draft.stages or not draft.text.strip():
                return
            if trigger is None:
                await asyncio.sleep(max(0.0, self.settings.pause_s - LOOKUP_PAUSE_S))
            await self._call(draft, context, trigger or Trigger.PAUSE)
        except (HeadstartError, OSError) as error:
            # A failed draft does not affect the client: its final call is then an ordinary one.
            draft.change(answer=getattr(error, "code", "error"))

    async def _warm(self, draft: PromptDraft) -> None:
        """Fill the provider's prompt cache with the unchanging part of the prompt, if that pays."""
        context = self.engine.limited_draft(self._context(draft, draft.text or "?"), WARM_TOKENS)
        estimate = self.engine.estimate_draft(context)
        refusal = refuse_warming(
            draft.template,
            estimate,
            draft.account,
            budget_usd=draft.left_usd(self.settings.warm_usd),
            only_warming="answer" not in draft.stages,
        )
        if refusal is not None:
            return draft.change(warm=refusal)
        await self.engine.admit_draft(context)
        draft.change(warm="running")
        waste_usd = draft.account.warm_extra * (estimate.cost_usd or 0.0)
        draft.warming = self._begin(draft, context, "warm", estimate, waste_usd=waste_usd)

    async def _infer(self, draft: PromptDraft) -> None:
        """Ask for an inference over the finished sentences, unless it was asked for already."""
        draft.inferences = kept_inferences(draft.inferences, draft.text)
        segment = next_segment(draft.text, draft.inferences)
        if segment is None or draft.inferring is not None:
            return
        asked = self._context(draft, inference_prompt(segment, draft.inferences))
        context = self.engine.limited_draft(asked, INFER_TOKENS)
        estimate = self.engine.estimate_draft(context)
        left_usd = draft.left_usd(self.settings.infer_usd)
        if refuse_cost(estimate, budget_usd=left_usd) is None:
            await self.engine.admit_draft(context)
            # The draft may have ended while this task waited.
            if draft.over or draft.inferring is not None:
                return
            draft.inferring = self._begin(draft, context, "inference", estimate, text=segment)

    def _inferred(self, draft: PromptDraft, kept: KeptCall) -> None:
        """Add an inference over the beginning of the prompt, and ask for one over the rest."""
        draft.inferring = None
        reply = kept.flight.reply
        answer = None if reply is None else reply.transcript.completion(self.clock())
        if answer is None or draft.over:
            return
        inference = read_inference(kept.text, answer_text(answer))
        draft.inferences = kept_inferences([*draft.inferences, inference], draft.text)
        self.engine.spawn(self._infer_more, draft)

    async def _infer_more(self, draft: PromptDraft) -> None:
        with contextlib.suppress(HeadstartError, OSError):
            if not draft.over:
                await self._infer(draft)

    async def _call(self, draft: PromptDraft, context: RequestContext, trigger: Trigger) -> None:
        """Make the call for the whole text, if that pays."""
        estimate, use = self.engine.estimate_draft(context), self._use.share(trigger)
        left_usd = draft.left_usd(self.settings.answer_usd)
        refusal = refuse_call(estimate, use, draft.account, budget_usd=left_usd)
        if draft.calls >= self.settings.max_calls:
            refusal = "max-calls"
        if refusal is not None:
            return draft.change(answer=refusal)
        await self.engine.admit_draft(context)
        draft.calls += 1
        draft.change(answer="running")
        waste_usd = expected_waste(estimate, use, draft.account)
        draft.kept = self._begin(
            draft, context, "answer", estimate, trigger=trigger, waste_usd=waste_usd
        )

    def _begin(
        self,
        draft: PromptDraft,
        context: RequestContext,
        purpose: Purpose,
        estimate: RoutingEstimate,
        *,
        trigger: Trigger = Trigger.PAUSE,
        text: str | None = None,
        waste_usd: float = 0.0,
    ) -> KeptCall:
        """Make a call, and reserve its cost and its expected waste until it ends.

        ``text`` is the part of the draft that the call contains; None: all of it.
        """
        cost_usd = estimate.cost_usd or 0.0
        cold = self.engine.estimate_draft(context, cold=True)
        discount_usd = (cold.waste_usd or 0.0) - (estimate.waste_usd or 0.0)
        flight = self.engine.start_draft(context)
        about = draft.text if text is None else text
        reader = flight.join()
        kept = KeptCall(flight, reader, context, about, trigger, discount_usd, waste_usd)
        draft.reserved_usd += cost_usd
        draft.account.reserve(waste_usd)
        assert flight.pump is not None

        def ended(_: asyncio.Task[None]) -> None:
            draft.reserved_usd -= cost_usd
            self._settle(draft, kept, purpose)

        flight.pump.add_done_callback(ended)
        return kept

    def _settle(self, draft: PromptDraft, kept: KeptCall, purpose: Purpose) -> None:
        """Note the cost and the result of a call that has ended."""
        spent_usd = _spent_usd(kept)
        draft.spent_usd += spent_usd
        result = "done" if kept.flight.error is None else "failed"
        if purpose == "answer":
            # It is booked by ``_let_go``, when it is known whether the client uses it.
            if draft.kept is kept:
                draft.change(answer=result)
            return
        self._book(kept, purpose)
        if purpose == "inference":
            self._inferred(draft, kept)
        else:
            # Learn the extra cost of a call that filled the prompt cache.
            draft.account.reserve(-kept.reserved_usd)
            draft.account.warmed(spent_usd, self._cold_cost(kept.context)[1])
            draft.change(warm=result)

    def _cold_cost(self, context: RequestContext) -> tuple[float, float]:
        """Return the cost of a call without the prompt cache, and what the cache saves, in USD."""
        cold = self.engine.estimate_draft(context, cold=True).cost_usd or 0.0
        return cold, cold - (self.engine.estimate_draft(context).cost_usd or 0.0)

    # --- the final call --------------------------------------------------------------------------

    def take_call(self, context: RequestContext) -> KeptCall | bytes | None:
        """End the draft of a final request; return what was prepared for the request.

        This is the call that answers it, if such a call was made, or the body with the inferences.
        None: nothing was prepared, and the request is handled like any other.
        """
        draft = self._drafts.get(context.prepared.live)
        if draft is None or self.engine.preparer.owner(context.scope) != draft.owner:
            return None
        kept, draft.kept = draft.kept, None
        self._close(draft, asked=True)
        context.affinity = draft.id
        text = submitted_text(draft.template, context.body)
        if kept is None:
            self._note_answer(draft, context, None)
            return _with_inferences(draft, text)
        fits = (
            text is not None and same_prompt(kept.text, text) and self._fits(kept, draft, context)
        )
        self._let_go(draft, kept, used=fits)
        self._note_answer(draft, context, kept if fits else None)
        return kept if fits else _with_inferences(draft, text)

    def _fits(self, kept: KeptCall, draft: PromptDraft, context: RequestContext) -> bool:
        """Tell whether a call can answer the final request, as far as their texts do not decide."""
        return (
            kept.flight.joinable
            and context.path == raw_path(draft.scope)
            and context.scope["query_string"] == draft.scope["query_string"]
            and self.engine.sends_alike(context.scope, draft.scope)
        )

    def _note_answer(
        self, draft: PromptDraft, context: RequestContext, used: KeptCall | None
    ) -> None:
        """Note the cost of the answer, and what the unused calls of its draft have saved.

        An unused call may have filled the provider's prompt cache.
        """
        cold_usd, discount_usd = self._cold_cost(context)
        if used is not None:
            discount_usd = used.discount_usd
        # The discount was booked with the call that filled the cache.
        if draft.warm in ("running", "done"):
            discount_usd = 0.0
        draft.account.answered(cold_usd)
        wasted_usd, draft.wasted_usd = draft.wasted_usd, 0.0
        draft.account.wasted_before(wasted_usd, discount_usd)

    def _let_go(self, draft: PromptDraft, kept: KeptCall, *, used: bool) -> None:
        """Book a call of a draft, and learn whether it was used. An unused call is cancelled."""
        self._use.learn(kept.trigger, used=used)
        if not used:
            kept.flight.leave(kept.reader)
        pump = kept.flight.pump
        assert pump is not None

        def book(_: asyncio.Task[None] | None) -> None:
            draft.account.reserve(-kept.reserved_usd)
            if not used and draft.over:
                draft.account.wasted(_wasted_usd(kept))
            elif not used:
                draft.wasted_usd += _wasted_usd(kept)
            self._book(kept, "used" if used else "unused")

        pump.add_done_callback(book)

    def _book(self, kept: KeptCall, reason: str) -> None:
        """Book the cost of a call that was made before a client asked for it, or without that."""
        try:
            row = kept.context.own_call(kept.flight, Outcome.DRAFT, kept.context.id, self.clock())
            self.observer.notify(msgspec.structs.replace(row, reason=reason))
        except Exception:  # noqa: BLE001 - nothing catches the errors of a callback
            logger.exception("a call of a live draft could not be booked")


def _scope_of_call(scope: Scope, path: bytes, query: bytes) -> Scope:
    """Return the scope of a draft's calls, from the scope of the request that opens the draft."""
    headers = [pair for pair in scope["headers"] if pair[0] not in _NOT_OF_CALL]
    return {
        **scope,
        "type": "http",
        "method": "POST",
        "path": path.decode(),
        "raw_path": path,
        "root_path": "",
        "query_string": query,
        "headers": [*headers, (b"content-type", JSON)],
    }


def _with_inferences(draft: PromptDraft, text: str | None) -> bytes | None:
    """Return the body of a final request with its inferences; None if there are none.

    None also in dialects in which later requests refer to an answer by its id: they would continue
    a prompt that the client has not sent.
    """
    dialect = draft.endpoint.dialect
    if text is None or "infer" not in draft.stages or dialect is None or dialect.names_answers:
        return None
    whole = with_inferences(text, kept_inferences(draft.inferences, text))
    return None if whole is None else draft.template.body(whole)


def _spent_usd(kept: KeptCall) -> float:
    """Return the booked cost of a call."""
    return sum(each.cost_usd or 0.0 for each in kept.flight.attempts)


def _wasted_usd(kept: KeptCall) -> float:
    """Return the cost of an unused call."""
    spent_usd = _spent_usd(kept)
    # The call was cancelled, so the provider reported no tokens.
    cut = any(each.estimated for each in kept.flight.attempts)
    return max(0.0, spent_usd - kept.discount_usd) if cut else spent_usd


def _decoded(data: bytes | str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise InvalidRequest(str(error)) from None


async def _send_states(draft: PromptDraft, send: Send) -> None:
    """Send each new state to the WebSocket."""
    while True:
        draft.changed.clear()
        text = msgspec.json.encode(draft.state()).decode()
        await send({"type": "websocket.send", "text": text})
        await draft.changed.wait()
