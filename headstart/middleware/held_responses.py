"""Answers ``GET`` and ``DELETE /v1/responses/{id}`` and its ``input_items`` for answers we hold."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from headstart.decisions import Outcome
from headstart.dialects.responses_chains import OWN, listed, page, read_answer, read_raws
from headstart.errors import HeadstartError, InvalidRequest, RequestError, UnknownReference
from headstart.middleware.endpoints import raw_path
from headstart.middleware.respond import JSON, NO_STORE, error_response, send_whole
from headstart.observe import Served

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.dialects.dialect import Dialect
    from headstart.middleware.conversations import Conversations, KeptTurn
    from headstart.middleware.identity import AccessControl
    from headstart.observe import Observer
    from headstart.types import Scope, Send

_PATH = re.compile(rb"/v1/+responses/+([^/]+)(/.*)?", re.IGNORECASE)
"""Some servers take paths in other spellings, too."""
_BELOW = re.compile(rb"/v1/+responses(/.*)?", re.IGNORECASE)
"""Paths whose bodies may name answers, such as ``/v1/responses/compact``."""
_ANSWERED = frozenset({("GET", None), ("GET", b"/input_items"), ("DELETE", None)})
"""The methods and ends of paths that are answered here. With others, as ``/cancel``, only ids are
looked at."""
HELD = "held"
"""The reason in the books of what was answered here."""
PAGE = 20
LARGEST_PAGE = 100


class HeldResponses:
    """Answers for the caller's own ids. ``owner`` names the caller of a request.

    An id of ours, or of another caller, that this caller does not have is answered with 404. All
    other ids are the provider's affair.
    """

    def __init__(
        self,
        conversations: Conversations,
        *,
        observer: Observer,
        clock: Callable[[], float],
        access: AccessControl,
        owner: Callable[[Scope], str | None],
        dialect: Dialect,
        new_id: Callable[[], str],
    ) -> None:
        self._conversations = conversations
        self._access = access
        self._owner = owner
        self._dialect = dialect
        self._new_id = new_id
        self._observer = observer
        self._clock = clock

    async def answer(self, scope: Scope, send: Send) -> bool:
        """Answer a request, or return False if it is to be relayed."""
        match = _PATH.fullmatch(raw_path(scope))
        if match is None or scope["method"] == "OPTIONS":
            return False
        request_id, began, at = self._new_id(), time.perf_counter(), self._clock()
        status, code, caller = 200, None, ""
        try:
            caller = self._access.admit(scope)
            id = unquote(match[1].decode("latin-1"))
            document = await self._document(scope, id, match[2])
        except (RequestError, HeadstartError) as error:
            status, headers, body = error_response(error, self._dialect, request_id)
            code = getattr(error, "code", "error")
            await send_whole(send, status, headers, body)
        else:
            if document is None:
                return False
            await send_whole(send, status, _headers(document, request_id), document)
        self._observer.notify(
            Served(
                id=request_id,
                at=at,
                endpoint=self._dialect.paths[0],
                outcome=Outcome.RELAY,
                status=status,
                stream=False,
                total_s=time.perf_counter() - began,
                caller=caller,
                reason=HELD,
                error=code,
            )
        )
        return True

    def checks(self, path: bytes) -> bool:
        """Tell whether the body of a relayed request to a path may name answers."""
        return _BELOW.fullmatch(path) is not None

    async def check(self, scope: Scope, body: bytes) -> None:
        """Raise UnknownReference for a body that names an answer which the caller does not have."""
        await self._conversations.open(self._owner(scope), body)

    async def _document(self, scope: Scope, id: str, end: bytes | None) -> bytes | None:
        """Return the answer's body; None: the provider has it. Raises UnknownReference."""
        owner = self._owner(scope)
        turn = None if owner is None else await self._conversations.find(owner, id)
        if turn is None or owner is None:
            if id.startswith(OWN) or await self._conversations.held_by_others(owner, id):
                raise _not_found(id)
            return None
        if turn.deleted:
            raise _not_found(id)
        if (scope["method"], end) not in _ANSWERED:
            return None
        if scope["method"] == "DELETE":
            self._conversations.delete(owner, turn)
            return msgspec.json.encode({"id": id, "object": "response", "deleted": True})
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if end is not None:
            return await self._list(owner, turn, query)
        if query.get("stream") == "true":
            if turn.own:
                return None
            raise InvalidRequest("stream: an answer that Headstart keeps is sent whole")
        return turn.response

    async def _list(self, owner: str, turn: KeptTurn, query: dict[str, str]) -> bytes:
        limit, order = query.get("limit", str(PAGE)), query.get("order", "desc")
        if not (limit.isdecimal() and 1 <= int(limit) <= LARGEST_PAGE):
            raise InvalidRequest(f"limit: must be a number from 1 to {LARGEST_PAGE}")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order: must be 'asc' or 'desc'")
        items: list[dict[str, Any]] = []
        for each in await self._conversations.chain(owner, turn.id) or [turn]:
            items += listed(read_raws(each.input), each.id)
            answer = None if each is turn else read_answer(each.response)
            items += [msgspec.json.decode(raw) for raw in answer.output] if answer else []
        found = page(items, after=query.get("after"), limit=int(limit), order=order)
        if found is None:
            raise InvalidRequest("after: no item of this list has this id")
        return msgspec.json.encode(found)


def _headers(document: bytes, request_id: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", JSON),
        (b"content-length", b"%d" % len(document)),
        (b"cache-status", b"headstart; hit; detail=" + HELD.encode()),
        (b"x-headstart-request-id", request_id.encode()),
        NO_STORE,
    ]


def _not_found(id: str) -> UnknownReference:
    return UnknownReference(f"Response with id '{id}' not found.", status=404, param=None)
