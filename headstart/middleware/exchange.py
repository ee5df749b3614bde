"""One request's own state: its ASGI callables, its clock readings and its row in the books."""

from __future__ import annotations

import asyncio
import re
import time
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import msgspec

from headstart.attempts import total_cost_usd
from headstart.decisions import Lookup, Outcome
from headstart.observe import Served
from headstart.policies.agreement.answers import answer_text
from headstart.policies.freshness import FOREVER
from headstart.types import Call

if TYPE_CHECKING:
    from typing import Self

    from headstart.attempts import Attempt
    from headstart.middleware.asgi_types import Receive, Scope, Send
    from headstart.middleware.body import Body
    from headstart.middleware.deadlines import Deadlines
    from headstart.middleware.endpoints import Route
    from headstart.middleware.flights import Client, Flight
    from headstart.middleware.prepare import Repeat
    from headstart.observe import Shaped
    from headstart.types import ChatRequest, Headers, Origin


BYTES_PER_TOKEN = 4
"""Of a request's body, for estimates."""


GAVE_UP = 0.8
"""Share of an SDK's patience from which on leaving means giving up: it began to count when it sent
the first byte, and we when we had read the last."""
NEAR = 0.8
"""Similarity from which on the answer to another prompt is a hint of this one's."""


_DECODINGS = 4
"""How often a path is decoded, at most, to find a segment that leads elsewhere."""
_ESCAPED_UNIT = re.compile(rb"%[uU]([0-9a-fA-F]{4})")
_OVERLONG = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]|\xf0[\x80-\x8f][\x80-\xbf]{2}"
)
"""UTF-8 of more bytes than the character needs."""
_SLASHES = dict.fromkeys(map(ord, "\u2044\u2215\u2216\u29f5\u29f8\u29f9"), "/")
"""What some servers map to a slash or backslash, beside what NFKC does."""
_SEGMENT_END = re.compile(r"[;#?]")


class Exchange:
    """A request being answered. ``clock`` readings are ``time.perf_counter`` seconds."""

    __slots__ = (
        "attempts",
        "begin_by",
        "body",
        "completion_tokens",
        "cost_usd",
        "deadline",
        "delivered",
        "domain",
        "error",
        "estimated",
        "first_byte",
        "holder",
        "holdout",
        "id",
        "lifetime",
        "lookup",
        "not_stored",
        "prompt_tokens",
        "receive",
        "repeat",
        "request",
        "retry_from",
        "route",
        "rule",
        "scope",
        "scope_name",
        "seat",
        "send",
        "shaped",
        "started",
        "status",
        "stored",
        "tenant",
        "timings",
        "total_s",
        "upstream",
        "upstream_s",
    )

    def __init__(self, id: str, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = id
        self.route = route
        self.scope = scope
        self.receive = receive
        self.send = send
        self.started = time.perf_counter()
        self.body: Body | None = None
        self.request: ChatRequest | None = None
        self.scope_name = ""
        self.rule = ""
        self.holder = ""
        self.begin_by: float | None = None
        """When its first byte must have gone out, in the event loop's time."""
        self.deadline: float | None = None
        """When all of it must have."""
        self.retry_from: float | None = None
        """When its SDK has waited so long that leaving means giving up; None: it comes once."""
        self.seat: tuple[Flight, Client] | None = None
        """Kept in the call for its SDK's retry."""
        self.total_s: float | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.shaped: tuple[Shaped, ...] = ()
        self.domain = ""
        self.tenant = ""
        self.repeat: Repeat | None = None
        """Set where the caller's repeat of it is answered anew."""
        self.lookup = Lookup(outcome=Outcome.MISS)
        self.timings: dict[str, float] = {}
        self.lifetime = FOREVER
        self.status = 0
        self.first_byte: float | None = None
        self.upstream = ""
        self.upstream_s: float | None = None
        self.holdout = False
        self.stored = False
        self.not_stored: str | None = None
        """Why nothing of the answer is kept."""
        self.delivered = False
        """The client has all of the answer, so it may leave."""
        self.error: str | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost_usd: float | None = None
        self.estimated = False

    @property
    def headers(self) -> Headers:
        """The request's header pairs."""
        headers: Headers = tuple(self.scope["headers"])
        return headers

    @property
    def path(self) -> bytes:
        """The raw path below the mount point."""
        return raw_path(self.scope)

    def note_times(self, lookup: Lookup) -> None:
        """Take over how long a lookup's stages took."""
        self.timings["lookup"] = lookup.lookup_s
        if lookup.encode_s:
            self.timings["encode"] = lookup.encode_s
        if lookup.match_s:
            self.timings["match"] = lookup.match_s

    def limit(self, bounds: Deadlines) -> None:
        """Bound the time until the first byte, and until the whole answer."""
        now = asyncio.get_running_loop().time()
        begin_s, whole_s, again = bounds
        self.begin_by = None if begin_s is None else now + begin_s
        self.deadline = None if whole_s is None else now + whole_s
        if begin_s is not None and again:
            self.retry_from = now + GAVE_UP * begin_s

    def forgo_retry(self) -> None:
        """End the call with this request, though its SDK may come again."""
        self.retry_from = None

    @property
    def will_retry(self) -> bool:
        """Its SDK has waited in vain as long as it said it would, so it will ask once more."""
        if self.retry_from is None or self.status:
            return False
        return asyncio.get_running_loop().time() >= self.retry_from

    @property
    def succeeded(self) -> bool:
        """The client has a whole answer."""
        return self.error is None and 200 <= self.status < 300

    def over(self) -> Self:
        """Take no more time, whatever is still to be booked."""
        self.total_s = self.elapsed()
        return self

    def call(self, *, editable: bool, predicts: bool = False) -> Call:
        """Return the request as it goes to an upstream.

        ``predicts``: with the answer to a similar prompt, for providers that take it for a hint.
        """
        assert self.body is not None
        trial, dialect = self.lookup.trial, self.route.dialect
        near = predicts and trial is not None and (self.lookup.similarity or 0.0) >= NEAR
        return Call(
            id=self.id,
            method=self.scope["method"],
            path=self.path,
            query_string=self.scope["query_string"],
            headers=self.headers,
            body=self.body.data,
            dialect="" if dialect is None else dialect.name,
            endpoint=self.route.name,
            route=self.rule,
            request=self.request,
            editable=editable,
            deadline=self.deadline,
            begin_by=self.begin_by,
            prompt_tokens=len(self.body.data) // BYTES_PER_TOKEN,
            output_tokens=None if trial is None else trial.entry.origin.completion_tokens or None,
            prediction=answer_text(trial.entry.answer) if near and trial is not None else "",
        )

    def elapsed(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.started

    def mark_first_byte(self) -> None:
        """Note that the first content byte goes to the client now."""
        if self.first_byte is None:
            self.first_byte = self.elapsed()

    def take_origin(self, origin: Origin) -> None:
        """Book an answer's tokens; what it cost is booked by ``pay``."""
        self.prompt_tokens = origin.prompt_tokens
        self.completion_tokens = origin.completion_tokens
        self.estimated = origin.estimated
        self.upstream = origin.upstream
        self.cost_usd = 0.0

    def pay(self, attempts: tuple[Attempt, ...], shaped: tuple[Shaped, ...]) -> None:
        """Book the upstream calls that this very request caused, and what was done for them."""
        if attempts:
            self.attempts, self.shaped = attempts, shaped
            self.cost_usd = total_cost_usd(attempts)
            self.upstream = self.upstream or attempts[-1].upstream

    def served(self, now: float) -> Served:
        """Return the row for the books. ``now`` is in Unix seconds."""
        elapsed = self.elapsed()
        total = elapsed if self.total_s is None else self.total_s
        overhead_s = sum(self.timings.values()) - self.timings.get("upstream", 0.0)
        entry, trial = self.lookup.entry, self.lookup.trial
        verdict = None if trial is None else trial.verdict
        row = Served(
            id=self.id,
            at=now - elapsed,
            endpoint=self.route.name,
            outcome=self.lookup.outcome,
            status=self.status,
            stream=self.request is not None and self.request.stream,
            total_s=total,
            ttft_s=self.first_byte,
            scope=self.scope_name,
            model=self.request.model if self.request is not None else "",
            upstream=self.upstream,
            reason=self.lookup.reason,
            similarity=self.lookup.similarity,
            veto=self.lookup.veto,
            entry=entry.id if entry is not None else None,
            holdout=self.holdout,
            domain=self.domain,
            neighbor=None if trial is None else trial.entry.id,
            rule=None if verdict is None else verdict.rule,
            score=None if verdict is None else verdict.score,
            threshold=None if verdict is None else verdict.threshold,
            error=self.error,
            encode_s=self.lookup.encode_s,
            lookup_s=self.lookup.lookup_s,
            upstream_s=self.upstream_s,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost_usd=self.cost_usd,
            estimated=self.estimated,
            route=self.rule,
            shaped=self.shaped,
            attempts=self.attempts,
            overhead_s=overhead_s,
            stored=self.stored,
            not_stored=None if self.stored else self.not_stored,
        )
        if entry is None or self.lookup.outcome not in (Outcome.EXACT, Outcome.SEMANTIC):
            return row
        # A hit saves the original call's figures less its own.
        return msgspec.structs.replace(
            row,
            saved_ttft_s=entry.origin.ttft_s - (self.first_byte or total),
            saved_total_s=entry.origin.total_s - total,
            saved_tokens=entry.origin.prompt_tokens + entry.origin.completion_tokens,
            saved_usd=entry.origin.cost_usd,
        )


def raw_path(scope: Scope) -> bytes:
    """Return the path as the client sent it, below ``root_path``."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = path.partition(b"?")[0]
    root = scope.get("root_path", "")
    if root and path.startswith(root.encode()):
        return path[len(root.encode()) :]
    return path


def has_dot_segment(path: bytes) -> bool:
    """Return whether a path has a ``.`` or ``..`` segment, in any spelling that a server may undo.

    Servers differ in what they decode and how often, in whether a backslash separates, in which
    characters they drop, and in what they cut off behind a semicolon, ``#`` or ``?``. So this
    reads a path as the most obliging of them would.
    """
    for _ in range(_DECODINGS):
        decoded = _OVERLONG.sub(_shortest, _ESCAPED_UNIT.sub(_unit, unquote_to_bytes(path)))
        if decoded == path:
            break
        path = decoded
    text = unicodedata.normalize("NFKC", path.decode("utf-8", "replace").translate(_SLASHES))
    return any(
        "".join(filter(_is_kept, _SEGMENT_END.split(segment, maxsplit=1)[0])) in (".", "..")
        for segment in text.replace("\\", "/").split("/")
    )


def _is_kept(character: str) -> bool:
    """Tell whether every server keeps a character: some drop what is invisible or not valid."""
    return unicodedata.category(character)[0] in "LNPS" and character != "\ufffd"


def _unit(escape: re.Match[bytes]) -> bytes:
    return chr(int(escape[1], 16)).encode("utf-8", "replace")


def _shortest(match: re.Match[bytes]) -> bytes:
    """Return the character that an overlong form stands for; lax decoders take it for that."""
    form = match[0]
    code = form[0] & (0x7F >> len(form))
    for byte in form[1:]:
        code = code << 6 | byte & 0x3F
    return chr(code).encode("utf-8", "replace")
