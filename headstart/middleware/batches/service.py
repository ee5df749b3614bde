"""``/v1/files`` and ``/v1/batches``: batches of clients, which run here in the background.

A client uploads a file of requests, makes a batch of it, asks for the batch until it has ended, and
reads the file of answers::

    POST /v1/files                     a form with purpose=batch            {"id": "file-1…", …}
    POST /v1/batches                   {"input_file_id": "file-1…", …}      {"id": "batch_2…", …}
    GET  /v1/batches/batch_2…          … "status": "completed", "output_file_id": "file-3…"
    GET  /v1/files/file-3…/content     the answers

A batch goes through these methods of ``BatchService``: ``_create`` saves it. ``_run_to_end`` waits
until it may run. ``_run`` reads its requests and opens its journal. ``_ask`` asks the requests
(``run.py``), while ``_watch`` looks whether it is cancelled or too late. ``_finish`` writes the
files of answers and of errors.

The requests of a batch take the same path as all others: cache, routes, books, limits of the
caller's key. They have the headers of the batch's owner, which are kept only in memory. So after a
restart a batch continues when its owner next asks for any file or batch.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

import anyio
import msgspec

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.registry import DIALECTS, DOCUMENTS
from headstart.dialects.responses_chains import list_page
from headstart.errors import (
    ConfigError,
    Forbidden,
    HeadstartError,
    InvalidRequest,
    Overloaded,
    RequestTooLarge,
    UnknownReference,
)
from headstart.middleware.batches.journal import (
    LEAST_BYTES,
    BatchFolder,
    BatchJournal,
    KeptBatch,
    KeptFile,
    RequestCounts,
    UploadWriter,
    new_id,
    read_requests,
    unanswered_row,
)
from headstart.middleware.batches.run import BatchBooks, BatchRun
from headstart.middleware.body import declared_length, iterate_body, paced
from headstart.middleware.concurrency import ConcurrencyLimit, Spawn, delete_regularly
from headstart.middleware.endpoints import raw_path
from headstart.middleware.respond import (
    NO_STORE,
    error_response,
    json_headers,
    response_start,
    send_whole,
)
from headstart.observe import Observation, Served, logger
from headstart.types import UNDECODABLE, ASGIApp, Headers, Receive, Scope, Send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headstart.middleware.batches.journal import BatchRequest
    from headstart.settings import BatchSettings

_PATH = re.compile(rb"/v1/(files|batches)(?:/([^/]+)(/[a-z]+)?)?")
ENDPOINTS = (
    *(path for each in DIALECTS.values() for path in each.paths),
    *(path for document in DOCUMENTS.values() for path in document.paths),
)
"""The paths of the requests in a batch."""
WINDOW, WINDOW_S = "24h", 24 * 3600
"""The time in which a batch must end. The API has no other one."""
PURPOSE, OUTPUT = "batch", "batch_output"
"""The purposes of uploaded files, and of the files of answers and errors."""
MOST_REQUESTS = 50_000
"""The most requests of one batch, as at OpenAI."""
SMALL_BODY = 64 * 1024
"""The most bytes of a JSON body."""
FORM_BYTES = 64 * 1024
"""The most bytes of a form without its file."""
PIECE = 2**20
"""The bytes of an upload or of a file that one call of a thread writes or reads."""
LOOK_S = 1.0
"""The time between two checks whether a batch is cancelled or too late."""
AGAIN_S = 10.0
"""The time until a batch that could not start here is tried again."""
SWEEP_S = 3600.0
"""Seconds between two searches for old files."""
PAGE, LARGEST_PAGE, MOST_FILES = 20, 100, 10_000
"""The items of a page: of batches by default, of batches at most, and of files."""
MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
CANCELLED, EXPIRED, STOPPED = "cancelled", "batch_expired", "batch_stopped"
"""The reasons to stop a run (the first two), and the error codes of requests that were not asked
(the last two)."""
_ENDINGS: dict[str | None, tuple[str, tuple[str, ...]]] = {
    None: ("completed", ("completed_at",)),
    CANCELLED: ("cancelled", ("cancelling_at", "cancelled_at")),
    EXPIRED: ("expired", ("expired_at",)),
}
"""For each reason why a batch ends, its status and the fields with the time. Others: failed."""
_OF_ONE_REQUEST = re.compile(
    rb"content-.*|connection|transfer-encoding|expect|te|accept.*|user-agent|x-stainless-.*"
    rb"|idempotency-key|x-headstart-(?!scope$).*"
)
"""Headers of the owner's request that its batch does not get."""


class _OpenBatch(NamedTuple):
    """A batch that runs in this process."""

    owner: str
    batch: KeptBatch
    requests: list[BatchRequest]
    journal: BatchJournal


class _TaggedBooks:
    """An observer that gives each row of the books to the batch whose tag the row has."""

    def __init__(self) -> None:
        self.batches: dict[str, BatchBooks] = {}

    def notify(self, observation: Observation) -> None:
        """Take an observation."""
        if isinstance(observation, Served) and self.batches:
            for tag in observation.tags:
                if (books := self.batches.get(tag)) is not None:
                    books.notify(observation)


@dataclass(eq=False, repr=False)
class BatchService:
    """Answers ``/v1/files`` and ``/v1/batches``, and runs the batches.

    ``app`` answers the requests of batches. ``owner`` returns the digest of a caller; it raises
    Unauthorized or Forbidden. ``check`` refuses a request that is too expensive to decode. The
    attribute ``books`` must observe the engine. ``aclose`` stops the batches; their journals keep
    the answers.
    """

    settings: BatchSettings
    folder: BatchFolder
    app: ASGIApp
    _: KW_ONLY
    owner: Callable[[Scope], str | None]
    spawn: Spawn
    clock: Callable[[], float]
    request_id: Callable[[], str]
    body_timeout_s: float | None
    check: Callable[[bytes], None]
    books: _TaggedBooks = field(default_factory=_TaggedBooks)
    _arriving: int = 0
    """The bytes that all uploads in progress may have together."""
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """The tasks of the batches that wait or run in this process, by their ids."""
    _runs: dict[str, BatchRun] = field(default_factory=dict)
    """The runs of this process, by the ids of their batches."""
    _turns: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)
    """Limits the batches of each caller that run at once, so that other callers can run one."""
    _looks_at: dict[str, float] = field(default_factory=dict)
    """The time, on the monotonic clock, of the next search for batches of an owner that do not
    run. inf: all of them run here or have ended."""
    _slots: asyncio.Semaphore = field(init=False)
    """Limits the batches of all callers that run at once."""
    _sweeping: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.settings.max_running)
        self._sweeping = self.spawn(self._sweep)

    async def aclose(self) -> None:
        """Stop all batches. The next process continues them."""
        tasks = [self._sweeping, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _sweep(self) -> None:
        """Delete old files, now and every hour, unless the clock seems to be wrong."""
        keep_s = self.settings.keep_days * 86400
        await delete_regularly(
            self.clock,
            self.folder.newest,
            lambda now: self.folder.sweep(now - keep_s),
            lambda error: logger.warning("batches.dir cannot be cleaned: %s", error.strerror),
            SWEEP_S,
        )

    # --- requests ---------------------------------------------------------------------------------

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request to one of these paths, or return False for another path."""
        match = _PATH.fullmatch(raw_path(scope))
        if match is None or scope["method"] == "OPTIONS":
            return False
        request_id = self.request_id()
        receive = paced(receive, self.body_timeout_s)
        kind, id, end = (part.decode("latin-1") if part else "" for part in match.groups())
        try:
            owner = self.owner(scope)
            if owner is None:
                raise Forbidden("the caller is not known, so no files are kept for it")
            await self._continue_batches(owner, scope)
            answer = self._file if kind == "files" else self._batch
            found = await answer(owner, scope, receive, id, end)
            if isinstance(found, KeptFile):
                await self._send_data(owner, found, send, request_id)
                return True
        except OSError as error:
            logger.error("batches.dir: %s", error.strerror)
            failed = HeadstartError("the folder of batches.dir cannot be used; the log says why")
            await _refuse(send, failed, request_id)
        except HeadstartError as error:
            await _refuse(send, error, request_id)
        else:
            body = msgspec.json.encode(found)
            headers = (
                *json_headers(body),
                (b"x-headstart-request-id", request_id.encode()),
                NO_STORE,
            )
            await send_whole(send, 200, headers, body)
        return True

    async def _file(
        self, owner: str, scope: Scope, receive: Receive, id: str, end: str
    ) -> KeptFile | KeptBatch | dict[str, Any]:
        """Answer a request for files: return a document, or the file whose data is asked for."""
        method = scope["method"]
        if not id:
            if method == "POST":
                return (await self._upload(owner, scope, receive)).document()
            _only(method, "GET")
            files = await asyncio.to_thread(self.folder.listed, owner, KeptFile)
            purpose = _query(scope).get("purpose")
            shown = [each.document() for each in files if purpose in (None, each.purpose)]
            return list_page(shown, _query(scope), size=MOST_FILES, largest=MOST_FILES)
        file = await asyncio.to_thread(self.folder.find, owner, id, KeptFile)
        if file is None or end not in ("", "/content"):
            raise _not_found("file", id)
        if end:
            _only(method, "GET")
            return file
        if method == "DELETE":
            await asyncio.to_thread(self.folder.delete, owner, id)
            return {"id": id, "object": "file", "deleted": True}
        _only(method, "GET")
        return file.document()

    async def _upload(self, owner: str, scope: Scope, receive: Receive) -> KeptFile:
        """Keep the file of a form, which is written to the disk while it arrives."""
        longest = self.settings.max_file_bytes + FORM_BYTES
        most = min(longest, self.settings.max_bytes)
        declared = declared_length(scope["headers"])
        if declared is not None and declared > longest:
            raise self._file_too_large()
        expected = most if declared is None else min(declared, most)
        await self._make_room(expected)
        self._arriving += expected
        try:
            return await self._keep_form(owner, scope, receive)
        finally:
            self._arriving -= expected

    def _file_too_large(self) -> RequestTooLarge:
        most = self.settings.max_file_bytes
        return RequestTooLarge(f"the file exceeds batches.max_file_bytes ({most})")

    async def _make_room(self, expected: int = LEAST_BYTES) -> None:
        """Raise RequestTooLarge if there is no room, counting the uploads in progress."""
        used = await asyncio.to_thread(self.folder.used_bytes)
        if used + self._arriving + expected > self.settings.max_bytes:
            raise RequestTooLarge(
                "the files of all batches take as much as batches.max_bytes allows "
                f"({self.settings.max_bytes}): delete some, or raise it"
            )

    async def _keep_form(self, owner: str, scope: Scope, receive: Receive) -> KeptFile:
        """Write the file of a form beside the folders, and move it into that of its owner."""
        kind = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        data = self.folder.root / f"{new_id('form-')}.part"
        form = UploadWriter(kind, data)
        try:
            await self._receive_form(form, receive)
            if form.purpose != PURPOSE:
                raise InvalidRequest(
                    f"purpose: {form.purpose!r} is not kept here, only {PURPOSE!r}: this server "
                    "runs batches itself (batches.dir)"
                )
            kept = partial(self.folder.keep, owner, data, form.filename or "", PURPOSE)
            return await asyncio.to_thread(kept, self.clock())
        finally:
            # A second cancellation does not stop it.
            await asyncio.shield(asyncio.to_thread(form.discard))

    async def _receive_form(self, form: UploadWriter, receive: Receive) -> None:
        size, waiting, most = 0, bytearray(), self.settings.max_file_bytes
        async for piece in iterate_body(receive):
            size += len(piece)
            if size > most + FORM_BYTES:
                raise self._file_too_large()
            waiting += piece
            if len(waiting) >= PIECE:
                await asyncio.to_thread(form.write, bytes(waiting))
                waiting.clear()
        if waiting:
            await asyncio.to_thread(form.write, bytes(waiting))
        await asyncio.to_thread(form.write, b"")
        await asyncio.to_thread(form.close)

    async def _send_data(self, owner: str, file: KeptFile, send: Send, request_id: str) -> None:
        path = self.folder.path(owner, file.id, "data")
        try:
            source = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError:
            return await _refuse(send, _not_found("file", file.id), request_id)
        with source:
            headers = [
                (b"content-type", b"application/octet-stream"),
                (b"content-length", b"%d" % file.bytes),
                (b"x-headstart-request-id", request_id.encode()),
                NO_STORE,
            ]
            await send(response_start(200, headers))
            while piece := await asyncio.to_thread(source.read, PIECE):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _batch(
        self, owner: str, scope: Scope, receive: Receive, id: str, end: str
    ) -> KeptFile | KeptBatch | dict[str, Any]:
        """Answer a request for batches: return a batch or a list of them."""
        method = scope["method"]
        if not id:
            if method == "POST":
                return await self._create(owner, scope, receive)
            _only(method, "GET")
            batches = await asyncio.to_thread(self.folder.listed, owner, KeptBatch)
            shown = [msgspec.to_builtins(self._now(each)) for each in batches]
            return list_page(shown, _query(scope), size=PAGE, largest=LARGEST_PAGE)
        batch = await asyncio.to_thread(self.folder.find, owner, id, KeptBatch)
        if batch is None or end not in ("", "/cancel"):
            raise _not_found("batch", id)
        if end:
            _only(method, "POST")
            return await self._cancel(owner, batch)
        _only(method, "GET")
        return self._now(batch)

    def _now(self, batch: KeptBatch) -> KeptBatch:
        """Return a batch with the counts of its run, if this process runs it."""
        run = self._runs.get(batch.id)
        if run is None or batch.has_ended:
            return batch
        return msgspec.structs.replace(batch, request_counts=_counts(run))

    async def _create(self, owner: str, scope: Scope, receive: Receive) -> KeptBatch:
        """Save the batch that a request describes, and let it run in the background."""
        asked = await _read_json(receive)
        file_id, endpoint, window = (
            asked.get(name) for name in ("input_file_id", "endpoint", "completion_window")
        )
        if endpoint not in ENDPOINTS:
            raise InvalidRequest(f"endpoint: use one of {', '.join(ENDPOINTS)}")
        if window != WINDOW:
            raise InvalidRequest(f"completion_window: use {WINDOW!r}")
        file = None
        if isinstance(file_id, str):
            file = await asyncio.to_thread(self.folder.find, owner, file_id, KeptFile)
        if file is None or file.purpose != PURPOSE:
            raise InvalidRequest("input_file_id: there is no such file with the purpose 'batch'")
        await self._make_room()
        now = int(self.clock())
        batch = KeptBatch(
            id=new_id("batch_"),
            endpoint=str(endpoint),
            input_file_id=file.id,
            completion_window=WINDOW,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=_metadata(asked.get("metadata")),
        )
        await asyncio.to_thread(self.folder.save, owner, batch)
        self._start(owner, batch, scope)
        return batch

    async def _cancel(self, owner: str, batch: KeptBatch) -> KeptBatch:
        """Ask the process that runs the batch to stop it after its running calls."""
        if batch.has_ended:
            raise InvalidRequest(f"a batch that is {batch.status} cannot be cancelled")
        await asyncio.to_thread(self.folder.cancel, owner, batch.id)
        run = self._runs.get(batch.id)
        if run is not None:
            run.stop(CANCELLED)
        found = await asyncio.to_thread(self.folder.find, owner, batch.id, KeptBatch)
        return self._now(batch if found is None else found)

    # --- runs -------------------------------------------------------------------------------------

    async def _continue_batches(self, owner: str, scope: Scope) -> None:
        """Start the batches of an owner that no process runs."""
        if time.monotonic() < self._looks_at.get(owner, 0.0):
            return
        self._looks_at[owner] = math.inf
        try:
            batches = await asyncio.to_thread(self.folder.listed, owner, KeptBatch)
        except BaseException:
            del self._looks_at[owner]
            raise
        for batch in batches:
            if not batch.has_ended and batch.id not in self._tasks:
                self._start(owner, batch, scope)

    def _start(self, owner: str, batch: KeptBatch, scope: Scope) -> None:
        """Run a batch in the background, with the headers of its owner's request."""
        headers: Headers = (
            *((name, value) for name, value in scope["headers"] if not _OF_ONE_REQUEST.match(name)),
            (b"x-headstart-tags", batch.id.encode()),
        )
        self._tasks[batch.id] = self.spawn(self._run_to_end, owner, batch, headers)

    async def _run_to_end(self, owner: str, batch: KeptBatch, headers: Headers) -> None:
        """Run a batch to its end. If the process ends before, the batch continues later."""
        places = asyncio.Semaphore(max(1, self.settings.max_running - 1))
        try:
            async with self._turns.setdefault(owner, places), self._slots:
                await self._run(owner, batch, headers)
        # Another process runs the batch, but may end before the batch does.
        except ConfigError as error:
            logger.info("batch %s does not start here: %s", batch.id, error)
            self._looks_at[owner] = time.monotonic() + AGAIN_S
        # The decoders accept different depths: one may accept what a later one refuses.
        except RecursionError:
            await self._fail(owner, batch, "a request is nested too deeply", None)
        except (OSError, HeadstartError) as error:
            logger.error("batch %s stopped: %s", batch.id, error)
            self._looks_at[owner] = time.monotonic() + AGAIN_S
        finally:
            del self._tasks[batch.id]

    async def _run(self, owner: str, batch: KeptBatch, headers: Headers) -> None:
        """Run a batch that has its place. Raises ConfigError if another process runs it."""
        folder = self.folder
        data = folder.path(owner, batch.input_file_id, "data")
        try:
            requests = await asyncio.to_thread(_read, data, batch.endpoint, self.check)
        except FileNotFoundError:
            return await self._fail(owner, batch, "the input file was deleted", None)
        except ConfigError as error:
            found = re.match(r"line (\d+): ", str(error))
            line = None if found is None else int(found[1])
            return await self._fail(owner, batch, str(error), line)
        journal = await asyncio.to_thread(
            BatchJournal, folder.path(owner, batch.id, "journal"), requests
        )
        ended = False
        try:
            # Another process may have finished it while this one waited for a place.
            known = await asyncio.to_thread(folder.find, owner, batch.id, KeptBatch)
            if known is None or known.has_ended:
                return
            batch = msgspec.structs.replace(
                batch, status="in_progress", in_progress_at=int(self.clock())
            )
            running = _OpenBatch(owner, batch, requests, journal)
            await self._finish(running, *await self._ask(running, headers))
            ended = True
        finally:
            await asyncio.shield(asyncio.to_thread(journal.close, delete=ended))

    async def _ask(self, running: _OpenBatch, headers: Headers) -> tuple[str | None, RequestCounts]:
        """Ask all requests; return the reason for an early stop, and the counts."""
        owner, batch, requests, journal = running
        concurrency = ConcurrencyLimit(1, len(requests) + 1)
        books = self.books.batches[batch.id] = BatchBooks()
        begin = partial(  # the sorting of 50,000 requests takes a second
            BatchRun, headers=headers, most=self.settings.concurrency
        )
        app = _limited(self.app, concurrency)
        run = await asyncio.to_thread(begin, app, concurrency, books, journal, requests)
        self._runs[batch.id] = run
        ended = asyncio.Event()
        watching = self.spawn(self._watch, owner, batch, run, ended)
        try:
            await run.run()
        finally:
            # It is not cancelled: the thread of a save would go on, and set the batch back later.
            ended.set()
            await asyncio.wait([watching])
            del self._runs[batch.id], self.books.batches[batch.id]
        return run.stopped_by, _counts(run)

    async def _watch(
        self, owner: str, batch: KeptBatch, run: BatchRun, ended: asyncio.Event
    ) -> None:
        """Save the counts for other processes; stop a run that was cancelled or has expired."""
        saved = None
        while not ended.is_set():
            now = msgspec.structs.replace(batch, request_counts=_counts(run))
            if now != saved:
                await asyncio.to_thread(self.folder.save, owner, now)
                saved = now
            if await asyncio.to_thread(self.folder.is_cancelled, owner, batch.id):
                run.stop(CANCELLED)
            elif self.clock() >= batch.expires_at:
                run.stop(EXPIRED)
            with anyio.move_on_after(LOOK_S):
                await ended.wait()

    async def _finish(self, running: _OpenBatch, reason: str | None, counts: RequestCounts) -> None:
        """Write the output, and save how the batch ended. After an OSError no output is left."""
        now, unanswered = self.clock(), _unanswered(running, reason)
        status, times = _ENDINGS.get(reason, ("failed", ("failed_at",)))
        done = msgspec.structs.replace(
            running.batch,
            status=status,
            request_counts=counts,
            errors=None if reason in _ENDINGS else _errors(STOPPED, str(reason), None),
            **dict.fromkeys((*times, "finalizing_at"), int(now)),
        )
        await asyncio.to_thread(self._save_output, running, done, unanswered, now)

    def _save_output(
        self, running: _OpenBatch, done: KeptBatch, unanswered: list[msgspec.Raw], now: float
    ) -> None:
        """Write the files of answers and of errors, and save the batch with their ids. It blocks.

        After an OSError none of the files is left.
        """
        ids: dict[str, str | None] = {}
        try:
            ids["output_file_id"] = self._write_output(running, "output", [], now)
            ids["error_file_id"] = self._write_output(running, "error", unanswered, now)
            self.folder.save(running.owner, msgspec.structs.replace(done, **ids))
        except OSError:
            for id in filter(None, ids.values()):
                self.folder.delete(running.owner, id)
            raise

    def _write_output(
        self, running: _OpenBatch, name: str, more: list[msgspec.Raw], now: float
    ) -> str | None:
        """Write the file of answers or of errors, and ``more`` rows; return its id.

        Without rows there is no file.
        """
        place = self.folder.root / new_id("data-")
        try:
            count = running.journal.write_output(place, succeeded=name == "output")
            if not (count or more):
                return None
            if more:
                with place.open("ab") as out:
                    out.write(b"\n".join(map(bytes, more)) + b"\n")
            place.chmod(0o600)
            filename = f"{running.batch.id}_{name}.jsonl"
            return self.folder.keep(running.owner, place, filename, OUTPUT, now).id
        finally:
            place.unlink(missing_ok=True)

    async def _fail(self, owner: str, batch: KeptBatch, message: str, line: int | None) -> None:
        """Save that a batch has failed because of its input file, at ``line`` if that is known."""
        failed = msgspec.structs.replace(
            batch,
            status="failed",
            failed_at=int(self.clock()),
            errors=_errors("invalid_request", message, line),
        )
        await asyncio.to_thread(self.folder.save, owner, failed)


def _limited(app: ASGIApp, concurrency: ConcurrencyLimit) -> ASGIApp:
    """Return an app whose requests count against the limit on concurrent calls."""

    async def gated(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with concurrency:
                await app(scope, receive, send)
        except Overloaded as error:
            await _refuse(send, error, "")

    return gated


def _read(data: Path, endpoint: str, check: Callable[[bytes], None]) -> list[BatchRequest]:
    """Return the requests of a file. Raises ConfigError, which names the line. It blocks."""
    with data.open("rb") as lines:
        requests = read_requests(lines, None, check=check, most=MOST_REQUESTS)
    if not requests:
        raise ConfigError("the file has no requests")
    for each in requests:
        if each.path != endpoint:
            raise ConfigError(
                f"line {each.place + 1}: url: {each.path!r} is not the batch's endpoint {endpoint}"
            )
    return requests


def _unanswered(running: _OpenBatch, reason: str | None) -> list[msgspec.Raw]:
    """Return the lines of requests without an answer. A cancelled batch has no such lines."""
    if reason in (None, CANCELLED):
        return []
    code, why = STOPPED, f"the batch was stopped before it was asked: {reason}"
    if reason == EXPIRED:
        code, why = EXPIRED, "it was not asked within the 24 hours of the batch"
    missing = (each for each in running.requests if not running.journal.holds(each.place))
    return [unanswered_row(each, code, why) for each in missing]


def _counts(run: BatchRun) -> RequestCounts:
    counts = run.counts
    return RequestCounts(
        total=counts.total, completed=counts.outcomes.total(), failed=counts.failed
    )


def _errors(code: str, message: str, line: int | None) -> dict[str, Any]:
    error = {"code": code, "message": message, "param": None, "line": line}
    return {"object": "list", "data": [error]}


async def _read_json(receive: Receive) -> dict[str, Any]:
    body = bytearray()
    async for piece in iterate_body(receive):
        body += piece
        if len(body) > SMALL_BODY:
            raise RequestTooLarge(f"the body exceeds {SMALL_BODY} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=dict[str, Any])
    except UNDECODABLE as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    pairs = cast("dict[object, object]", value) if isinstance(value, dict) else None
    if pairs is None or len(pairs) > MOST_METADATA:
        raise InvalidRequest(f"metadata: an object of at most {MOST_METADATA} texts")
    kept: dict[str, str] = {}
    for key, text in pairs.items():
        if not (isinstance(key, str) and isinstance(text, str)):
            raise InvalidRequest("metadata: its values must be texts")
        if len(key) > LONGEST_KEY or len(text) > LONGEST_VALUE:
            raise InvalidRequest(
                f"metadata: a key has at most {LONGEST_KEY} characters, a value {LONGEST_VALUE}"
            )
        kept[key] = text
    return kept


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1")))


def _only(method: str, allowed: str) -> None:
    if method != allowed:
        raise InvalidRequest(f"this path takes {allowed}")


def _not_found(kind: str, id: str) -> UnknownReference:
    return UnknownReference(f"No such {kind}: {id[:80]}", status=404, param="id")


async def _refuse(send: Send, error: HeadstartError, request_id: str) -> None:
    status, headers, body = error_response(error, OPENAI_CHAT, request_id)
    headers.append((b"x-headstart-request-id", request_id.encode()))
    await send_whole(send, status, headers, body)
