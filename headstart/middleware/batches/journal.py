"""The files of a batch: its requests, the journal of the answers, and the output.

1. ``read_requests`` reads the input, which has a request in each line::

       {"custom_id": "a", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [...]}}
       {"id": "b", "model": "m", "prompt": "Hi"}

   The first line has OpenAI's batch format, the second one our short format.
2. ``BatchJournal`` keeps the answer to each request as soon as it has come, in the order of the
   answers. So a batch that was interrupted can go on. At the end, ``write_output`` writes the
   answers in the order of the input.
3. ``BatchFolder`` has the files and batches of all callers of ``/v1/files`` and ``/v1/batches``.
4. ``UploadWriter`` writes a file of ``/v1/files`` while it arrives.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import threading
from email.message import Message
from hashlib import sha256
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

import msgspec
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from headstart.dialects.registry import RELAYED_PREFIXES
from headstart.errors import ConfigError, HeadstartError, InvalidRequest
from headstart.middleware.batches.documents import MapOptions, MapStep, check_request, read_document
from headstart.middleware.concurrency import lock_file, replace_file
from headstart.types import UNDECODABLE, Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


CHAT = "/v1/chat/completions"
_FIRST = ("model", "tools", "system", "instructions")
"""The fields of a body that a provider reads before the conversation."""
_TEXTS = ("messages", "input", "contents", "prompt")


# --- the requests ---------------------------------------------------------------------------------


class CallPlace(NamedTuple):
    """The place of a call in a batch: its request's, and its step if a document is split."""

    place: int
    step: MapStep | None


class BatchRequest(NamedTuple):
    """One request of a batch."""

    place: int
    """Its place in the input, from 0."""
    custom_id: str
    path: str
    body: bytes
    document: str | tuple[str, ...] | None = None
    """The document that is split into parts. Each part gets a call."""
    step: MapStep | None = None
    """The place of this call among the calls for one document; None if nothing is split."""

    @property
    def call(self) -> CallPlace:
        """The place of its call in the batch."""
        return CallPlace(self.place, self.step)

    @property
    def identity(self) -> tuple[str, bytes]:
        """The path and the body. Requests with equal ones are asked only once."""
        return self.path, self.body


def read_requests(
    lines: Iterable[bytes],
    model: str | None,
    map_field: str | None = None,
    *,
    check: Callable[[bytes], None] | None = None,
    most: int | None = None,
) -> list[BatchRequest]:
    """Return the requests of a file in OpenAI's batch format or in our short one.

    ``model`` is for requests that name no model. ``map_field`` names the field with the document to
    split. For the file of a client, ``check`` refuses a line that is too expensive to decode, and
    ``most`` limits the number of requests. Raises ConfigError, which names the line.
    """
    requests: list[BatchRequest] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if len(requests) == most:
                raise ConfigError(f"a batch has at most {most} requests")
            if check is not None:
                check(line)
            row = _object(line)
            document = None
            if map_field is not None:
                document = read_document(row.pop(map_field, None), map_field)
            found = _request(row, len(requests), number, model)
            if document is not None:
                check_request(found.path, msgspec.json.decode(found.body))
                found = found._replace(document=document)
        except (UnicodeDecodeError, HeadstartError) as error:
            raise ConfigError(f"line {number}: {error}") from error
        except RecursionError as error:
            raise ConfigError(f"line {number}: it is nested too deeply") from error
        if (first := seen.setdefault(found.custom_id, number)) != number:
            raise ConfigError(
                f"line {number}: the id {found.custom_id!r} is also that of line {first}; give "
                "each request its own id, so that the answers can be told apart"
            )
        requests.append(found)
    return requests


def _object(line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'{error}; each line is a JSON object, such as {{"prompt": "…"}}'
        ) from error


def _request(row: dict[str, Any], place: int, number: int, model: str | None) -> BatchRequest:
    """Return the request of line ``number``, in either format. Raises ConfigError."""
    default_id = f"line-{number}"
    if "body" in row:
        custom_id, path, body = row.get("custom_id", default_id), row.get("url", CHAT), row["body"]
        if row.get("method", "POST") != "POST":
            raise ConfigError("method: only POST can be sent")
    else:
        custom_id, path, body = row.get("id", default_id), CHAT, _body_of_short_form(row)
    if not isinstance(body, dict):
        raise ConfigError("body: it is not a JSON object")
    body = cast("dict[str, Any]", body)
    if not isinstance(path, str) or not path.encode().startswith(RELAYED_PREFIXES):
        raise ConfigError(f"url: {path!r} is not a path of a provider such as {CHAT}")
    if body.get("stream"):
        raise ConfigError("stream: a batch writes whole answers; leave stream out")
    if model is not None:
        body = {"model": model, **body}
    if "model" not in body and "/models/" not in path:
        raise ConfigError("model: it names none; give one with --model")
    custom_id = custom_id if isinstance(custom_id, str) else msgspec.json.encode(custom_id).decode()
    return BatchRequest(place, custom_id, path, msgspec.json.encode(body))


def _body_of_short_form(row: dict[str, Any]) -> dict[str, Any]:
    body = {name: value for name, value in row.items() if name not in ("id", "prompt")}
    if "prompt" in row and "messages" not in row:
        body["messages"] = [{"role": "user", "content": row["prompt"]}]
    if "messages" not in body:
        raise ConfigError("it has neither body (OpenAI's batch format) nor prompt or messages")
    return body


def in_prefix_order(requests: Iterable[BatchRequest]) -> list[BatchRequest]:
    """Return requests in an order in which requests with equal beginnings are neighbours.

    A provider keeps the beginning of a prompt in its prompt cache for some minutes, at a lower
    price.
    """

    def beginning(request: BatchRequest) -> tuple[bytes, int]:
        body = msgspec.json.decode(request.body, type=dict[str, Any])
        read = [body.get(name) for name in (*_FIRST, *_TEXTS)]
        return request.path.encode() + msgspec.json.encode(read), request.place

    return sorted(requests, key=beginning)


# --- the journal ----------------------------------------------------------------------------------


class BatchResult(Frozen):
    """One answered or failed request, as the journal keeps it."""

    place: int
    outcome: str
    """The way it was answered, such as ``exact`` or ``miss``."""
    succeeded: bool
    usd: float
    row: msgspec.Raw
    """Its line in the output."""
    step: MapStep | None = None
    """The call that this answers, if the document was split; None for a whole request."""


class Submission(Frozen):
    """A batch that a provider runs for us at a lower price, as the journal keeps it.

    It is written before the batch is made. So no batch is made twice or forgotten, even if this
    process is killed in between.
    """

    token: str
    """Names the submission at the provider."""
    upstream: str
    path: str
    digests: tuple[str, ...]
    """The digests of its calls."""
    at: float
    """Unix seconds."""
    batch: str | None = None
    """The provider's id of the batch. None: it is not known whether the provider has it."""
    over: bool = False
    """Whether its answers were fetched."""


_SUBMISSION = b'{"token":'
"""The beginning of a submission's line."""


class _JournalHead(Frozen):
    """The first line of a journal."""

    requests: int
    digest: str
    """The SHA-256 of all requests."""


class _JournalPlace(NamedTuple):
    """Where the result of a call is in the file. The results themselves would fill the memory."""

    succeeded: bool
    start: int
    length: int


class BatchJournal:
    """The journal of a batch: a line for each answered request, in a file beside the output.

    The first line is a ``_JournalHead``. Each further line is a ``BatchResult`` or a
    ``Submission``, and replaces an earlier line of the same call or submission.

    A line is in the file before the next request begins, so no line is lost if the process is
    killed. After ``sync`` they also survive a power cut. An incomplete last line is dropped. Raises
    ConfigError if the file is the journal of other requests, if another process writes to it, or if
    it cannot be opened.
    """

    def __init__(
        self, path: Path, requests: list[BatchRequest], mapped: MapOptions | None = None
    ) -> None:
        """Open the journal. ``mapped`` says how documents are split and joined."""
        digest = sha256()
        for each in requests:
            digest.update(msgspec.json.encode((each.custom_id, each.path, each.body)))
            if mapped is not None:
                digest.update(msgspec.json.encode((each.document, mapped)))
        self.path = path
        self._head = _JournalHead(requests=len(requests), digest=digest.hexdigest())
        self._kept: dict[CallPlace, _JournalPlace] = {}
        """The last result of each call."""
        self.results: list[BatchResult] = []
        """The results of whole requests in the journal when it was opened, without ``row``."""
        self.submissions: dict[str, Submission] = {}
        """Submissions by their tokens."""
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            self._lock()
            self._read()
        except OSError as error:
            self._file.close()
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            lock_file(self._file.fileno(), wait=False)
        except OSError as error:
            raise ConfigError(
                f"another process works on this batch: it holds {self.path}"
            ) from error

    def _read(self) -> None:
        """Read the lines of earlier runs; write the head if the file is new."""
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        self._end = whole
        lines = data[:whole].splitlines(keepends=True)
        if not lines:
            self._write(msgspec.json.encode(self._head))
            return
        self._check_head(lines[0])
        start = len(lines[0])
        results: dict[int, BatchResult] = {}
        for line in lines[1:]:
            is_submission = line.startswith(_SUBMISSION)
            kind: type[Submission | BatchResult] = Submission if is_submission else BatchResult
            try:
                known = msgspec.json.decode(line, type=kind)
            except UNDECODABLE as error:
                raise ConfigError(f"{self.path}, byte {start}: {error}") from error
            if isinstance(known, Submission):
                self.submissions[known.token] = known
            else:
                self._note(known, start, len(line))
                if known.step is None:
                    results[known.place] = msgspec.structs.replace(known, row=msgspec.Raw(b""))
            start += len(line)
        self.results = list(results.values())

    def _check_head(self, line: bytes) -> None:
        """Raise ConfigError if the file is not the journal of these requests."""
        try:
            head = msgspec.json.decode(line, type=_JournalHead)
        except UNDECODABLE as error:
            raise ConfigError(f"{self.path} is not the journal of a batch: {error}") from error
        if head != self._head:
            raise ConfigError(
                f"{self.path} is the journal of other requests; name another --output, or delete it"
            )

    def _note(self, result: BatchResult, start: int, length: int) -> None:
        kept = _JournalPlace(result.succeeded, start, length)
        self._kept[CallPlace(result.place, result.step)] = kept

    def succeeded(self, place: int) -> bool:
        """Return whether the request at this place has its answer."""
        kept = self._kept.get(CallPlace(place, None))
        return kept is not None and kept.succeeded

    def holds(self, place: int) -> bool:
        """Return whether the request at this place has an answer or an error."""
        return CallPlace(place, None) in self._kept

    def result_of_step(self, place: int, step: MapStep) -> BatchResult | None:
        """Return the answer to one call for the document of a request, if the call has one."""
        kept = self._kept.get(CallPlace(place, step))
        return self._result(kept) if kept is not None and kept.succeeded else None

    def add(self, result: BatchResult) -> None:
        """Write a result. Raises OSError, for example where the disk is full."""
        start = self._end
        self._write(msgspec.json.encode(result))
        self._note(result, start, self._end - start)

    def submit(self, submission: Submission) -> None:
        """Write a submission, and wait until it is on the disk. Raises OSError."""
        self._write(msgspec.json.encode(submission))
        self.submissions[submission.token] = submission
        self.sync()

    def _write(self, line: bytes) -> None:
        line += b"\n"
        written = self._file.write(line)
        if written != len(line):  # a short write: the disk is full
            raise OSError(f"{self.path}: only a part of a line could be written")
        self._end += len(line)

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self._file.fileno())

    def write_output(self, output: Path, *, succeeded: bool | None = None) -> int:
        """Write rows to ``output`` in the order of the input; return their number.

        ``succeeded`` selects the rows of requests that succeeded, or that failed; None: all rows.
        The file is replaced atomically. After an OSError no part of it is left.
        """
        count = 0
        part = output.with_name(output.name + ".part")
        try:
            with part.open("wb") as file:
                for row in self._rows(succeeded):
                    file.write(row + b"\n")
                    count += 1
                file.flush()
                os.fsync(file.fileno())
            replace_file(part, output)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return count

    def _rows(self, succeeded: bool | None) -> Iterator[bytes]:  # noqa: FBT001
        whole = [
            (place, kept)
            for (place, step), kept in self._kept.items()
            if step is None and succeeded in (None, kept.succeeded)
        ]
        for _, kept in sorted(whole):
            yield bytes(self._result(kept).row)

    def _result(self, kept: _JournalPlace) -> BatchResult:
        self._file.seek(kept.start)
        return msgspec.json.decode(self._file.read(kept.length), type=BatchResult)

    def close(self, *, delete: bool = False) -> None:
        """Close the file, and delete it if it is not needed any more."""
        if sys.platform == "win32":
            self._file.close()  # an open file cannot be deleted there
        if delete:
            self.path.unlink()
        self._file.close()


# --- lines of the output --------------------------------------------------------------------------


def body_of(row: msgspec.Raw) -> bytes:
    """Return the body of the answer in a line of the output."""
    return bytes(msgspec.json.decode(row, type=_OutputRow).response.body)


class _OutputResponse(Frozen):
    body: msgspec.Raw


class _OutputRow(Frozen):
    response: _OutputResponse


def unanswered_row(request: BatchRequest, code: str, message: str) -> msgspec.Raw:
    """Return the line of a request that was not asked."""
    row = {
        "id": f"batch_req_{request.place + 1}",
        "custom_id": request.custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return msgspec.Raw(msgspec.json.encode(row))


def error_message(body: bytes) -> str | None:
    """Return the message of a provider's error, or None if it has none."""
    try:
        document: Any = msgspec.json.decode(body)
        return str(document["error"]["message"])
    except (*UNDECODABLE, KeyError, TypeError):
        return None


def output_row(request: BatchRequest, id: str, status: int, body: bytes) -> msgspec.Raw:
    """Return the line of an answer in OpenAI's batch output format."""
    try:
        document: object = msgspec.Raw(body) if msgspec.json.decode(body) is not None else None
    except UNDECODABLE:
        document = body.decode("utf-8", "replace")
    response = {"status_code": status, "request_id": id, "body": document}
    row = {
        "id": f"batch_req_{id}",
        "custom_id": request.custom_id,
        "response": response,
        "error": None,
    }
    return msgspec.Raw(msgspec.json.encode(row))


# --- the folder of ``/v1/files`` and ``/v1/batches`` ----------------------------------------------

ID = re.compile(r"(?:file-|batch_)[0-9a-f]{24}")
LEAST_BYTES = 4096
"""A smaller file counts as this many bytes, because it takes a block of the disk."""
LONGEST_HEADERS = 2048
"""The longest headers of a field of a form, and the longest content type of the form. The time to
read their parameters grows with the square of their length."""
MOST_FIELDS = 32
"""Most fields of a form."""
ABANDONED_S = 3600.0
"""The time without a write after which an incomplete upload is abandoned."""
ENDED = frozenset(("completed", "failed", "expired", "cancelled"))


class KeptFile(Frozen):
    """A file of a caller. ``created_at`` is in Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"

    def document(self) -> dict[str, Any]:
        """Return the file as the API shows it."""
        return {**msgspec.to_builtins(self), "object": "file", "status": "processed"}


class RequestCounts(Frozen, omit_defaults=False):
    """The numbers of a batch's requests, by their results."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class KeptBatch(Frozen, omit_defaults=False):
    """A batch of a caller, as the API shows it. Times are in Unix seconds."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    object: str = "batch"
    status: str = "validating"
    errors: dict[str, Any] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the batch has ended, so that it does not change any more."""
        return self.status in ENDED


Kept = TypeVar("Kept", bound=KeptFile | KeptBatch)
_PREFIXES: dict[type[Any], str] = {KeptFile: "file-", KeptBatch: "batch_"}


def new_id(prefix: str) -> str:
    """Return an id that cannot be guessed."""
    return prefix + secrets.token_hex(12)


class BatchFolder:
    """Files and batches on the disk, by their owners.

    Each caller has a folder, so nobody finds the files of another one, and only the user of this
    process may read them. These are in the folder of a caller::

        file-0123….json                    a ``KeptFile``
        file-0123….data                    its bytes
        batch_4567….json                   a ``KeptBatch``
        batch_4567….journal                the answers of a batch that has not ended
        batch_4567….cancel                 (empty) the owner has cancelled the batch

    Several processes may use the folder at the same time. Methods block, so the event loop calls
    them in a thread. They raise OSError.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self, now: float) -> None:
        """Make the folder, for the user of this process only, and delete abandoned uploads.

        Uploads of other processes, and of the gateway before a reload, may go on meanwhile.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in self.root.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                if part.stat().st_mtime < now - ABANDONED_S:
                    part.unlink()

    def of(self, owner: str) -> Path:
        """Return the folder of a caller."""
        return self.root / sha256(owner.encode()).hexdigest()[:32]

    def path(self, owner: str, id: str, kind: str) -> Path:
        """Return the place of the data, the journal or the document of an id."""
        return self.of(owner) / f"{id}.{kind}"

    def save(self, owner: str, document: KeptFile | KeptBatch) -> None:
        """Write a document atomically."""
        place = self.path(owner, document.id, "json")
        place.parent.mkdir(mode=0o700, exist_ok=True)
        part = place.with_suffix(".new")
        part.touch(0o600)
        part.write_bytes(msgspec.json.encode(document))
        replace_file(part, place)

    def find(self, owner: str, id: str, kind: type[Kept]) -> Kept | None:
        """Return the document of an id, if the caller has it."""
        if not (ID.fullmatch(id) and id.startswith(_PREFIXES[kind])):
            return None
        try:
            found = msgspec.json.decode(self.path(owner, id, "json").read_bytes(), type=kind)
        except (FileNotFoundError, *UNDECODABLE):
            return None
        if isinstance(found, KeptBatch) and not found.has_ended:
            with contextlib.suppress(FileNotFoundError):
                at = int(self.path(owner, id, "cancel").stat().st_mtime)
                return msgspec.structs.replace(found, status="cancelling", cancelling_at=at)
        return found

    def cancel(self, owner: str, id: str) -> None:
        """Mark a batch as cancelled, for the process that runs it."""
        self.path(owner, id, "cancel").touch(0o600)

    def is_cancelled(self, owner: str, id: str) -> bool:
        """Return whether a batch is marked as cancelled."""
        return self.path(owner, id, "cancel").exists()

    def listed(self, owner: str, kind: type[Kept]) -> list[Kept]:
        """Return all documents of a caller, the newest first."""
        ids = [each.stem for each in self.of(owner).glob(f"{_PREFIXES[kind]}*.json")]
        found = [each for id in ids if (each := self.find(owner, id, kind)) is not None]
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def keep(self, owner: str, data: Path, filename: str, purpose: str, now: float) -> KeptFile:
        """Make a file of ``data``, which is moved into the folder of its owner.

        After an OSError it is deleted.
        """
        file = KeptFile(
            id=new_id("file-"),
            bytes=data.stat().st_size,
            created_at=int(now),
            filename=filename,
            purpose=purpose,
        )
        place = self.path(owner, file.id, "data")
        place.parent.mkdir(mode=0o700, exist_ok=True)
        data.replace(place)
        try:
            self.save(owner, file)
        except OSError:
            self.delete(owner, file.id)
            raise
        return file

    def delete(self, owner: str, id: str) -> None:
        """Delete a file and its data."""
        for kind in ("json", "data"):
            self.path(owner, id, kind).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """Return the bytes of all files of all callers."""
        return sum(max(each.st_size, LEAST_BYTES) for _, each in self._files())

    def sweep(self, before: float) -> int:
        """Delete files that were last written before this Unix time; return their number."""
        old = [path for path, stat in self._files() if stat.st_mtime < before]
        for each in old:
            each.unlink(missing_ok=True)
        return len(old)

    def newest(self) -> float | None:
        """Return the Unix time at which a file was last written, None if there is no file."""
        return max((stat.st_mtime for _, stat in self._files()), default=None)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield all files that exist. Other processes may delete some of them meanwhile."""
        for path in self.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if S_ISREG(found.st_mode):
                    yield path, found


# --- uploads --------------------------------------------------------------------------------------


class UploadWriter:
    """Reads a form while it arrives, and writes its file into ``into``. The methods block.

    If their caller is cancelled, a method may still run in its thread, so they take turns.
    ``purpose`` and ``filename`` are None until their field has begun. Raises InvalidRequest for a
    form that cannot be read, or that has too many fields or too long headers.
    """

    def __init__(self, content_type: str, into: Path) -> None:
        if len(content_type) > LONGEST_HEADERS:
            raise InvalidRequest("content-type: it is too long")
        kind, options = parse_options_header(content_type)
        if kind != "multipart/form-data" or not options.get("boundary"):
            raise InvalidRequest("send the file as multipart/form-data with a boundary")
        self._parser = PushMultipartParser(
            options["boundary"], max_header_size=LONGEST_HEADERS, max_segment_count=MOST_FIELDS
        )
        self._field = ""
        """The name of the field that is read now."""
        self.filename: str | None = None
        self.purpose: str | None = None
        self._into = into
        self._out: BinaryIO | None = None
        self._turn = threading.Lock()
        self._discarded = False

    def write(self, piece: bytes) -> None:
        """Read the next piece of the form; an empty one ends the form."""
        with self._turn:
            if self._discarded:
                return
            if self._out is None:
                self._into.touch(0o600)
                self._out = self._into.open("wb")
            self._read(piece, self._out)

    def _read(self, piece: bytes, out: BinaryIO) -> None:
        try:
            for found in self._parser.parse(piece):
                if isinstance(found, MultipartSegment):
                    self._begin(found)
                elif found and self._field == "file":
                    out.write(found)
                elif found and self._field == "purpose":
                    self.purpose = (self.purpose or "") + found[:64].decode("utf-8", "replace")
        except MultipartError as error:
            raise InvalidRequest(f"the form cannot be read: {error.args[0]}") from error
        if not piece and (self.filename is None or self.purpose is None):
            raise InvalidRequest("the form needs the fields 'file' and 'purpose'")

    def _begin(self, field: MultipartSegment) -> None:
        self._field = field.name or ""
        if {"file": self.filename, "purpose": self.purpose}.get(self._field) is not None:
            raise InvalidRequest(f"the form has the field {self._field!r} twice")
        if self._field == "file":
            head = Message()  # it also knows ``filename*``
            head["content-disposition"] = field["Content-Disposition"]
            self.filename = head.get_filename() or "file"

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            if self._out is not None:
                self._out.close()

    def discard(self) -> None:
        """Close and delete the file. Further pieces are ignored.

        A full disk cannot take the last bytes, but its file is deleted, too.
        """
        self._discarded = True
        with contextlib.suppress(OSError):
            self.close()
        self._into.unlink(missing_ok=True)
