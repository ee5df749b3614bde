"""Upstreams whose calls go to the provider's batch endpoint: within a day, at half the price.

A run of ``headstart batch --tier batch`` makes each request twice:

1. ``BatchedUpstream.send`` has no answer for the call. ``BatchDesk`` keeps the call, and the
   request fails with ``InBatch``.
2. ``BatchTier.settle`` submits all such calls, as one batch for each upstream, path and model. It
   waits until the provider has answered the batches, and gives the answers to the desk.
3. The same request is made again. Now ``send`` finds the answer at the desk.

The *digest* of a call, a hash of its path and body, connects these steps: equal calls have equal
digests. In a batch, a request is named ``TOKEN-DIGEST``, where the token stands for the submission;
the second of two equal calls is ``TOKEN-DIGEST-2``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from datetime import datetime  # noqa: TC003 - msgspec reads the types of fields
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import anyio
import msgspec

from headstart.errors import (
    ConfigError,
    HeadstartError,
    InvalidRequest,
    RequestError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnreachable,
)
from headstart.middleware.batches.journal import BatchJournal, Submission, error_message
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.outgoing import OutgoingRequest, pieces_of, read_head
from headstart.reply import Reply, Transcript
from headstart.types import UNDECODABLE, Call, Headers, T

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping

    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.upstreams.signers import Signer
    from headstart.settings import UpstreamSettings

WINDOW = "24h"
MARK = "headstart"
"""The name under which a batch of OpenAI's carries the token of its submission, in its metadata."""
CLOCKS_DIFFER_S = 600.0
"""How far the provider's clock may be behind ours, at most, when we look for a batch that we have
submitted."""
ANSWER_S = 300.0
"""The longest wait for an answer of the batch endpoint itself. Files take long."""
LOOK_S = 30.0
"""Seconds between two requests for the state of a batch that may be ours."""
_ANTHROPIC_PATH = b"/v1/messages"
_OPENAI_PATHS = frozenset(
    (b"/v1/chat/completions", b"/v1/responses", b"/v1/embeddings", b"/v1/completions",
     b"/v1/moderations")
)  # fmt: skip
_OF_ONE_CALL = frozenset(("content-type", "content-length", "accept-encoding", "accept"))
"""The headers of a call that the requests to the batch endpoint do not have."""
_EXPIRED = "the provider did not answer it within a day"


class InBatch(RequestError):
    """The request waits for the provider's answer to a batch."""

    status = 425
    code = "in_batch"


class BatchedCall(NamedTuple):
    """A call in the form in which it is sent."""

    upstream: BatchedUpstream
    path: str
    model: str
    headers: list[tuple[str, str]]
    """With the key. They are sent with each request to the batch endpoint."""
    body: bytes

    @property
    def digest(self) -> str:
        """Equal for calls that are the same."""
        return sha256(self.path.encode() + b"\0" + self.body).hexdigest()[:32]


class BatchedAnswer(NamedTuple):
    """The provider's answer to one request of a batch."""

    status: int
    body: bytes


class BatchDesk:
    """The calls that wait for a batch, and the answers of finished batches.

    Each answer is used only once, so equal calls get different answers. Errors are not passed to
    the engine: they would open the circuit breaker of a provider that answers other calls.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, BatchedCall] = {}
        """Calls by the id of the request that made them. Of several calls the first one is kept."""
        self._answers: defaultdict[str, list[BatchedAnswer]] = defaultdict(list)
        self._errors: defaultdict[str, list[BatchedAnswer]] = defaultdict(list)

    def answered(self, digest: str, answer: BatchedAnswer) -> None:
        """Add the answer to a call, or its error."""
        kept = self._errors if answer.status >= 400 else self._answers
        kept[digest].append(answer)

    def error(self, digest: str) -> BatchedAnswer | None:
        """Return the provider's error for a call, if it answered with one."""
        known = self._errors.get(digest)
        return known.pop() if known else None

    def take(self, request: str, call: BatchedCall) -> BatchedAnswer:
        """Return the answer to a call. Raises InBatch if there is none."""
        known = self._answers.get(call.digest)
        if not known:
            self.waiting.setdefault(request, call)
            raise InBatch("the provider answers this request in a batch")
        return known.pop(0)


class BatchedUpstream(HTTPUpstream):
    """An upstream that sends no single calls. ``desk`` has the answers.

    Raises ConfigError for an upstream whose calls are signed: they have no batch endpoint.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        clock: Callable[[], float],
        *,
        desk: BatchDesk,
        credential: Headers | None = None,
        signer: Signer | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        if signer is not None:
            raise ConfigError(
                f"upstream {settings.name!r}: --tier batch knows the batch endpoints of OpenAI and "
                "Anthropic alone; leave this upstream out"
            )
        super().__init__(settings, clock, credential=credential, spawn=spawn)
        self._desk = desk

    async def send(self, call: Call) -> Reply:
        """Return the answer of the batch. Raises InBatch, and InvalidRequest."""
        incoming = self._incoming(call)
        sent = self.writer.write(call, incoming.client, incoming.own)
        answer = self._desk.take(call.id, self._batched(sent))
        length = b"%d" % len(answer.body)
        head = read_head(
            answer.status, ((b"content-type", b"application/json"), (b"content-length", length))
        )
        transcript = Transcript()
        status, headers, reader = incoming.begin(head, transcript, strip_usage=False)
        pieces = pieces_of(answer.body, reader, transcript)
        return Reply(
            self.name, status, headers, pieces, transforms=sent.transforms, transcript=transcript
        )

    def _batched(self, sent: OutgoingRequest) -> BatchedCall:
        document: Any = msgspec.json.decode(sent.body) if sent.body else None
        model = document.get("model") if isinstance(document, dict) else None
        is_known = sent.path == _ANTHROPIC_PATH or sent.path in _OPENAI_PATHS
        if not is_known or not isinstance(model, str):
            raise InvalidRequest(
                f"upstream {self.name!r} has no batch endpoint for {sent.path.decode('latin-1')} "
                "that Headstart knows: leave out --tier batch"
            )
        headers = [(name, value) for name, value in sent.headers if name not in _OF_ONE_CALL]
        return BatchedCall(self, sent.path.decode(), model, headers, sent.body)

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
        content_type: str = "application/json",
        query: str = "",
    ) -> bytes:
        """Return the whole answer of the provider. Raises UpstreamError."""
        sent = [*headers, ("accept-encoding", "identity")]
        if body is not None:
            sent.append(("content-type", content_type))
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._open().request(
                    method,
                    self.url(path.encode(), query.encode()),
                    data=body,
                    headers=sent,
                    allow_redirects=False,
                    proxy=self._settings.proxy,
                ) as response,
            ):
                read = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnreachable(
                f"upstream {self.name}: {method} {path} failed: {type(error).__name__}"
            ) from error
        if response.status >= 300:
            why = error_message(read) or "without a message"
            raise UpstreamRefused(
                f"upstream {self.name}: {method} {path}: {response.status}: {why}",
                status=response.status,
                headers=(),
                body=read,
                code="upstream_error",
                upstream=self.name,
            )
        return read


# --- the endpoints ---------------------------------------------------------------------------


class BatchState(NamedTuple):
    """The progress of the provider."""

    done: int
    ended: bool


class BatchEndpoint(Protocol):
    """The batch endpoint of a provider, for calls with one upstream, path and model.

    Methods raise UpstreamError.
    """

    most_calls: int
    most_bytes: int
    """The most calls of a batch, and the most bytes of their bodies."""

    async def submit(self, token: str, calls: Mapping[str, BatchedCall]) -> str:
        """Make a batch of calls, by name, and return its id."""

    async def find(self, token: str, since: float, count: int) -> str | None:
        """Return the batch that was made with a token since this Unix time; None: there is none.

        ``count`` is the number of its requests.
        """

    async def state(self, id: str) -> BatchState:
        """Return the progress of a batch."""

    def results(self, id: str) -> AsyncIterator[tuple[str, BatchedAnswer]]:
        """Yield name and answer of each request of a batch that has ended."""


def endpoint_of(call: BatchedCall) -> BatchEndpoint:
    """Return the endpoint for the calls with a call's upstream, path and model."""
    form = _Anthropic if call.path.encode() == _ANTHROPIC_PATH else _OpenAI
    return form(call)


class _OpenAIFile(msgspec.Struct):
    """An uploaded file."""

    id: str


class _OpenAIBatch(msgspec.Struct):
    """A batch as OpenAI describes it: the fields that we read."""

    id: str
    status: str
    created_at: float
    """Unix seconds."""
    request_counts: dict[str, int] | None = None
    metadata: dict[str, Any] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Any = None

    @property
    def has_ended(self) -> bool:
        """Whether the provider works on it no more."""
        return self.status in ("completed", "expired", "cancelled")

    def reason(self) -> str:
        """Return why the provider refused it."""
        match self.errors:
            case {"data": [{"message": str(message)}, *_]} if message:
                return message
        return "without a message"


class _AnthropicBatch(msgspec.Struct):
    """A batch as Anthropic describes it: the fields that we read."""

    id: str
    processing_status: str
    created_at: datetime
    request_counts: dict[str, int]


Batch = TypeVar("Batch", _OpenAIBatch, _AnthropicBatch)


class _Page(msgspec.Struct):
    """A part of a list of batches."""

    data: list[msgspec.Raw]
    has_more: bool | None = None


class _EndpointForm:
    """The common part of both endpoints. ``call`` is any call of the batch."""

    most_calls, most_bytes = 50_000, 150 * 2**20

    def __init__(self, call: BatchedCall) -> None:
        self._call = call

    async def _ask(
        self, form: type[T], method: str, path: str, body: bytes | None = None, **more: str
    ) -> T:
        """Ask, and return the answer as a value of type ``form``."""
        return self._parsed(form, await self._read(method, path, body, **more), path)

    async def _read(self, method: str, path: str, body: bytes | None = None, **more: str) -> bytes:
        call = self._call
        return await call.upstream.exchange(method, path, call.headers, body, **more)

    def _parsed(self, form: type[T], document: bytes | msgspec.Raw, path: str) -> T:
        try:
            return msgspec.json.decode(document, type=form)
        except UNDECODABLE as error:
            raise self._unreadable(path) from error

    def _unreadable(self, path: str) -> UpstreamProtocolError:
        name = self._call.upstream.name
        return UpstreamProtocolError(f"upstream {name}: the answer of {path} cannot be read")

    async def _batches(self, form: type[Batch], path: str, after: str) -> AsyncIterator[Batch]:
        """Yield all batches of the key, the newest first.

        The list comes in pages. The parameter ``after`` names the last batch of the page before.
        """
        query = "limit=100"
        while True:
            page = await self._ask(_Page, "GET", path, query=query)
            for each in page.data:
                batch = self._parsed(form, each, path)
                yield batch
            if not page.has_more or not page.data:
                return
            query = f"limit=100&{after}={quote(batch.id, safe='')}"

    async def _rows(self, path: str) -> AsyncIterator[tuple[str, BatchedAnswer]]:
        """Yield name and answer of each line of a file of results."""
        for line in (await self._read("GET", path)).splitlines():
            try:
                row = msgspec.json.decode(line)
                found = str(row["custom_id"]), self._answer(row)
            except (*UNDECODABLE, AttributeError, KeyError, TypeError, ValueError) as error:
                raise self._unreadable(path) from error
            yield found

    def _answer(self, row: dict[str, Any]) -> BatchedAnswer:
        """Return the answer in a line.

        Raises AttributeError, KeyError, TypeError or ValueError for another form.
        """
        raise NotImplementedError


class _OpenAI(_EndpointForm):
    async def submit(self, token: str, calls: Mapping[str, BatchedCall]) -> str:
        path = self._call.path
        lines = [
            msgspec.json.encode(
                {"custom_id": name, "method": "POST", "url": path, "body": msgspec.Raw(call.body)}
            )
            for name, call in calls.items()
        ]
        boundary = f"headstart-{token}"
        form = _upload_form(boundary, f"headstart-{token}.jsonl", b"\n".join(lines) + b"\n")
        content_type = f"multipart/form-data; boundary={boundary}"
        file = await self._ask(_OpenAIFile, "POST", "/v1/files", form, content_type=content_type)
        wanted = {
            "input_file_id": file.id,
            "endpoint": path,
            "completion_window": WINDOW,
            "metadata": {MARK: token},
        }
        batch = await self._ask(_OpenAIBatch, "POST", "/v1/batches", msgspec.json.encode(wanted))
        return batch.id

    async def find(self, token: str, since: float, count: int) -> str | None:  # noqa: ARG002
        async for batch in self._batches(_OpenAIBatch, "/v1/batches", "after"):
            if batch.created_at < since - CLOCKS_DIFFER_S:
                return None
            if (batch.metadata or {}).get(MARK) == token:
                return batch.id
        return None

    async def state(self, id: str) -> BatchState:
        batch = await self._ask(_OpenAIBatch, "GET", f"/v1/batches/{id}")
        if batch.status == "failed":
            raise UpstreamRefused(
                f"upstream {self._call.upstream.name} refused the batch: {batch.reason()}",
                status=400,
                headers=(),
                body=b"",
                code="upstream_error",
            )
        counts = batch.request_counts or {}
        done = counts.get("completed", 0) + counts.get("failed", 0)
        return BatchState(done, batch.has_ended)

    async def results(self, id: str) -> AsyncIterator[tuple[str, BatchedAnswer]]:
        batch = await self._ask(_OpenAIBatch, "GET", f"/v1/batches/{id}")
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            async for row in self._rows(f"/v1/files/{file}/content"):
                yield row

    def _answer(self, row: dict[str, Any]) -> BatchedAnswer:
        response = row.get("response")
        if response:
            body = msgspec.json.encode(response["body"])
            return BatchedAnswer(int(response["status_code"]), body)
        error = row["error"] or {}
        is_expired = error.get("code") == "batch_expired"
        return _failed(_EXPIRED if is_expired else error.get("message"))


class _Anthropic(_EndpointForm):
    _PATH = "/v1/messages/batches"

    async def submit(self, token: str, calls: Mapping[str, BatchedCall]) -> str:  # noqa: ARG002 - in the names
        requests = [
            {"custom_id": name, "params": msgspec.Raw(call.body)} for name, call in calls.items()
        ]
        body = msgspec.json.encode({"requests": requests})
        return (await self._ask(_AnthropicBatch, "POST", self._PATH, body)).id

    async def find(self, token: str, since: float, count: int) -> str | None:
        """Find the batch by the names in its results, because this API keeps no token with a batch.

        So this waits for the end of each batch with the same number of requests.
        """
        async for batch in self._batches(_AnthropicBatch, self._PATH, "after_id"):
            if batch.created_at.timestamp() < since - CLOCKS_DIFFER_S:
                return None
            if sum(batch.request_counts.values()) != count:
                continue
            while not (await self.state(batch.id)).ended:  # noqa: ASYNC110 - only the provider knows when it ends
                await asyncio.sleep(LOOK_S)
            async for name, _ in self.results(batch.id):
                if name.startswith(f"{token}-"):
                    return batch.id
                break
        return None

    async def state(self, id: str) -> BatchState:
        batch = await self._ask(_AnthropicBatch, "GET", f"{self._PATH}/{id}")
        counts = batch.request_counts
        done = sum(counts.values()) - counts.get("processing", 0)
        return BatchState(done, batch.processing_status == "ended")

    def results(self, id: str) -> AsyncIterator[tuple[str, BatchedAnswer]]:
        # Not results_url: the key goes to the configured address alone.
        return self._rows(f"{self._PATH}/{id}/results")

    def _answer(self, row: dict[str, Any]) -> BatchedAnswer:
        result = row["result"]
        match result["type"]:
            case "succeeded":
                return BatchedAnswer(200, msgspec.json.encode(result["message"]))
            case "errored":
                kind = result["error"]["error"]["type"]
                status = 400 if kind == "invalid_request_error" else 500
                return BatchedAnswer(status, msgspec.json.encode(result["error"]))
            case "expired":
                return _failed(_EXPIRED)
            case other:
                return _failed(f"the provider says that it is {other}")


def _failed(message: str | None) -> BatchedAnswer:
    """Return an answer for a request without one."""
    error = {"type": "batch_error", "message": message or "the provider gave no answer"}
    return BatchedAnswer(500, msgspec.json.encode({"type": "error", "error": error}))


def _upload_form(boundary: str, filename: str, data: bytes) -> bytes:
    """Return the form that uploads a file of requests for a batch."""
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{filename}"\r\n'
        "content-type: application/jsonl\r\n\r\n"
    )
    return head.encode() + data + f"\r\n--{boundary}--\r\n".encode()


# --- the batches of one run -----------------------------------------------------------------------

FIRST_LOOK_S, SLOWER, LONGEST_LOOK_S = 1.0, 1.5, 60.0
"""Seconds between two looks at the batches. The time grows while nothing changes."""
MOST_FAILURES = 10
"""Number of failures of the endpoint in a row that end the run."""
_PASSING = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
"""The statuses of errors after which the same request may succeed."""


class _Running(NamedTuple):
    """A batch at a provider."""

    submission: Submission
    endpoint: BatchEndpoint

    @property
    def id(self) -> str:
        """The provider's id of the batch."""
        return self.submission.batch or ""


class BatchTier:
    """Submits calls to batch endpoints, waits for the answers, and gives them to the ``desk``.

    The journal has a line for each submission before it is made. So a run that was killed finds its
    batches again, and submits nothing twice.
    """

    def __init__(self, desk: BatchDesk, journal: BatchJournal) -> None:
        self.desk = desk
        self._journal = journal
        self._calls: dict[str, list[BatchedCall]] = defaultdict(list)
        """The calls that wait for ``settle``, by their digests. ``settle`` takes all of them."""
        self.submitted = 0
        """Number of requests in the batches of this round."""
        self.done = 0
        """Number of those that the provider has answered."""
        self.batches = 0
        """Number of batches of all rounds."""
        self._taken: list[Submission] = []
        """The batches whose answers the desk has."""

    def defers(self, request: str, *, again: bool) -> str | None:
        """Return the digest of a request's call if the call has no answer.

        The call is submitted with the next batch, but not ``again``.
        """
        call = self.desk.waiting.pop(request, None)
        if call is None:
            return None
        if not again:
            self._calls[call.digest].append(call)
        return call.digest

    async def settle(self, sleep: Callable[[float], Awaitable[bool]]) -> bool:
        """Submit all calls that wait, and take the answers; return False if the run was stopped.

        ``sleep`` waits for some seconds, and returns False if the run was stopped. Raises
        HeadstartError.
        """
        self.submitted = sum(map(len, self._calls.values()))
        self.done = 0
        running = await self._find_running()
        for calls in self._groups():
            running.append(await self._submit(calls))
        self.batches += len(running)
        have_ended = await self._wait(running, sleep)
        self._taken = []
        if have_ended:
            for each in running:
                await self._fetch(each)
            self._taken = [each.submission for each in running]
        return have_ended

    async def close_round(self) -> None:
        """Note that the answers are in the journal: what failed may be submitted again.

        Raises HeadstartError.
        """
        for each in self._taken:
            await self._note(msgspec.structs.replace(each, over=True))
        self._taken = []

    # --- submissions -------------------------------------------------------------------------

    async def _find_running(self) -> list[_Running]:
        """Return the batches of earlier runs that contain waiting calls, and take these calls."""
        running: list[_Running] = []
        for known in tuple(self._journal.submissions.values()):
            counts = Counter(known.digests)
            calls = [call for digest in counts for call in self._calls.get(digest, ())]
            if known.over or not calls:
                continue
            endpoint, submission = endpoint_of(calls[0]), known
            if known.batch is None:  # the run was killed before it noted the provider's id
                id = await _find(endpoint, known)
                if id is None:
                    continue  # the provider never got this batch: its calls are submitted again
                submission = await self._note(msgspec.structs.replace(known, batch=id))
            running.append(_Running(submission, endpoint))
            for digest, count in counts.items():
                del self._calls[digest][:count]
        return running

    def _groups(self) -> Iterator[list[BatchedCall]]:
        """Yield the calls that go into one batch each, and forget them."""
        groups: dict[tuple[str, str, str], list[BatchedCall]] = defaultdict(list)
        for calls in self._calls.values():
            for call in calls:
                groups[call.upstream.name, call.path, call.model].append(call)
        self._calls.clear()
        for calls in groups.values():
            yield from _chunks(calls, endpoint_of(calls[0]))

    async def _submit(self, calls: list[BatchedCall]) -> _Running:
        """Make a batch. If that failed, the batch may exist all the same: look for it first."""
        endpoint, token = endpoint_of(calls[0]), secrets.token_hex(6)
        now = time.time()  # noqa: TID251 - the provider's times are Unix seconds, too
        submission = Submission(
            token=token,
            upstream=calls[0].upstream.name,
            path=calls[0].path,
            digests=tuple(call.digest for call in calls),
            at=now,
        )
        await self._note(submission)
        named = dict(_named(token, calls))
        id = await _retried(
            partial(endpoint.submit, token, named), partial(_find, endpoint, submission)
        )
        return _Running(await self._note(msgspec.structs.replace(submission, batch=id)), endpoint)

    async def _note(self, submission: Submission) -> Submission:
        """Write a submission to the journal, and return it. Raises HeadstartError."""
        try:
            await asyncio.to_thread(self._journal.submit, submission)
        except OSError as error:
            raise HeadstartError(f"the journal cannot be written: {error}") from error
        return submission

    # --- answers -----------------------------------------------------------------------------

    async def _wait(
        self, running: Iterable[_Running], sleep: Callable[[float], Awaitable[bool]]
    ) -> bool:
        """Look at the batches until all have ended; return False if the run was stopped.

        It bears some failures of the endpoint: a run may take a day.
        """
        left, done = list(running), dict[str, int]()
        look_s, failures = FIRST_LOOK_S, 0
        while True:
            before = self.done
            for each in tuple(left):
                try:
                    state = await each.endpoint.state(each.id)
                except UpstreamError as error:
                    failures += 1
                    if not _passes(error) or failures >= MOST_FAILURES:
                        raise
                    continue
                failures = 0
                requests = len(each.submission.digests)
                done[each.submission.token] = requests if state.ended else state.done
                if state.ended:
                    left.remove(each)
            self.done = sum(done.values())
            if not left:
                return True
            look_s = FIRST_LOOK_S if self.done > before else min(look_s * SLOWER, LONGEST_LOOK_S)
            if not await sleep(look_s):
                return False

    async def _fetch(self, each: _Running) -> None:
        """Give the answers of a batch to the desk."""

        async def read() -> list[tuple[str, BatchedAnswer]]:
            return [row async for row in each.endpoint.results(each.id)]

        for name, answer in await _retried(read):
            self.desk.answered(_digest_in(name), answer)


def _chunks(calls: Iterable[BatchedCall], endpoint: BatchEndpoint) -> Iterator[list[BatchedCall]]:
    """Yield the calls in lists that are small enough for one batch each."""
    chunk: list[BatchedCall] = []
    size = 0
    for call in calls:
        is_full = len(chunk) == endpoint.most_calls or size + len(call.body) > endpoint.most_bytes
        if chunk and is_full:
            yield chunk
            chunk, size = [], 0
        chunk.append(call)
        size += len(call.body)
    yield chunk


def _named(token: str, calls: Iterable[BatchedCall]) -> Iterator[tuple[str, BatchedCall]]:
    """Yield each call with its name in the batch, ``TOKEN-DIGEST``; equal calls get a number."""
    seen = Counter[str]()
    for call in calls:
        seen[call.digest] += 1
        number = "" if seen[call.digest] == 1 else f"-{seen[call.digest]}"
        yield f"{token}-{call.digest}{number}", call


def _digest_in(name: str) -> str:
    """Return the digest in a name that ``_named`` has made; empty in any other name."""
    return "".join(name.split("-")[1:2])


async def _find(endpoint: BatchEndpoint, submission: Submission) -> str | None:
    """Return the id of a batch if the provider has it."""
    return await endpoint.find(submission.token, submission.at, len(submission.digests))


async def _retried(
    ask: Callable[[], Awaitable[T]], find: Callable[[], Awaitable[T | None]] | None = None
) -> T:
    """Ask, and again after an error that passes, unless ``find`` finds a result then."""
    pause_s = FIRST_LOOK_S
    while True:
        try:
            return await ask()
        except UpstreamError as error:
            if not _passes(error) or pause_s > LONGEST_LOOK_S:
                raise
        await anyio.sleep(pause_s)
        pause_s *= 2
        if find is not None and (found := await find()) is not None:
            return found


def _passes(error: UpstreamError) -> bool:
    """Tell whether the same request may succeed later: the provider has not refused it."""
    return not isinstance(error, UpstreamRefused) or error.status in _PASSING
