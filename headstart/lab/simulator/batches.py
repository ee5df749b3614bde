"""The batch endpoints of a simulated provider: OpenAI's files and batches, Anthropic's batches."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
from multipart import MultipartError, MultipartParser, parse_options_header

from headstart.lab.simulator.chat_request import BadRequest
from headstart.lab.simulator.simulated_calls import ScriptedReply, SimulatedRequest, json_reply

if TYPE_CHECKING:
    from collections.abc import Callable


WINDOW_S = 24 * 3600.0
_ENDPOINTS = (
    "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions", "/v1/moderations",
)  # fmt: skip
_MESSAGES = b"/v1/messages/batches"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PAGE, _LARGEST_PAGE = 20, 100


class _Line(NamedTuple):
    """One request of a batch."""

    custom_id: str
    path: bytes
    body: bytes


class _BatchAnswer(NamedTuple):
    custom_id: str
    status: int = 0
    """0: the request was cancelled before it was answered."""
    document: Any = None


@dataclass
class _File:
    id: str
    name: str
    purpose: str
    data: bytes
    created: float

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.data),
            "created_at": int(self.created),
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


@dataclass
class _ProviderBatch:
    id: str
    created: float
    lines: list[_Line]
    asked: dict[str, Any]
    """The request that made it; empty for a batch of Anthropic's, which has no input file."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    cancelled: float | None = None
    answers: list[_BatchAnswer] | None = None
    """None: it is not done."""
    files: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class SimulatedBatches:
    """Keeps files and batches, each for the key that made it.

    A batch is done ``takes_s`` seconds after it was made, by ``clock``. ``answer`` returns status
    and body for a path and a body. ``asked`` counts the bodies of the requests in all batches.
    """

    answer: Callable[[SimulatedRequest, bytes, bytes], tuple[int, bytes]]
    clock: Callable[[], float]
    takes_s: float

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all files and batches."""
        self.asked = Counter[bytes]()
        self.submitted = 0
        """The batches that were made."""
        self._files: dict[tuple[bytes, str], _File] = {}
        self._batches: dict[tuple[bytes, str], _ProviderBatch] = {}

    def reply(self, incoming: SimulatedRequest) -> ScriptedReply | None:
        """Return the reply to a request of these endpoints; None for any other request.

        Raises BadRequest.
        """
        head, _, rest = incoming.path.removeprefix(b"/v1/").decode("latin-1").partition("/")
        if incoming.path == _MESSAGES or incoming.path.startswith(_MESSAGES + b"/"):
            found = self._messages(incoming, incoming.path[len(_MESSAGES) + 1 :].decode("latin-1"))
        elif head == "files":
            found = self._file(incoming, rest)
        elif head == "batches":
            found = self._openai(incoming, rest)
        else:
            return None
        if isinstance(found, bytes):
            return json_reply(200, found)
        return _missing(incoming) if found is None else json_reply(200, msgspec.json.encode(found))

    # --- OpenAI ------------------------------------------------------------------------------

    def _file(self, incoming: SimulatedRequest, rest: str) -> dict[str, Any] | bytes | None:
        owner = incoming.credential
        if not rest:
            if incoming.method == "GET":
                mine = [each for (of, _), each in self._files.items() if of == owner]
                return _page(incoming, [each.document() for each in reversed(mine)])
            form = read_form(incoming.header(b"content-type") or b"", incoming.body)
            name, data = form.get("file", ("", b""))
            purpose = form.get("purpose", ("", b""))[1].decode()
            if not name or not purpose:
                raise BadRequest("'file' and 'purpose' are required properties")
            return self._keep(owner, name, purpose, data, f"file-{incoming.id[:20]}").document()
        id, _, end = rest.partition("/")
        file = self._files.get((owner, id))
        if file is None:
            return None
        if end == "content":
            return file.data
        if incoming.method == "DELETE":
            del self._files[owner, id]
            return {"id": id, "object": "file", "deleted": True}
        return file.document()

    def _keep(self, owner: bytes, name: str, purpose: str, data: bytes, id: str) -> _File:
        file = _File(id, name, purpose, data, self.clock())
        self._files[owner, id] = file
        return file

    def _openai(self, incoming: SimulatedRequest, rest: str) -> dict[str, Any] | None:
        owner = incoming.credential
        if not rest:
            if incoming.method == "POST":
                batch = self._make(incoming)
                return self._document(incoming, batch)
            mine = [each for (of, _), each in self._batches.items() if of == owner and each.asked]
            return _page(incoming, [self._document(incoming, each) for each in reversed(mine)])
        id, _, end = rest.partition("/")
        found = self._batches.get((owner, id))
        if found is None or not found.asked:
            return None
        if end == "cancel" and found.cancelled is None and found.answers is None:
            found.cancelled = self.clock()
        return self._document(incoming, found)

    def _make(self, incoming: SimulatedRequest) -> _ProviderBatch:
        asked = msgspec.json.decode(incoming.body, type=dict[str, Any])
        file = self._files.get((incoming.credential, str(asked.get("input_file_id"))))
        if file is None or file.purpose != "batch":
            raise BadRequest("input_file_id: no such file with purpose 'batch'")
        if asked.get("endpoint") not in _ENDPOINTS:
            raise BadRequest(f"endpoint: use one of {', '.join(_ENDPOINTS)}")
        if asked.get("completion_window") != "24h":
            raise BadRequest("completion_window: use '24h'")
        lines, errors = _read_lines(file.data, asked["endpoint"])
        batch = _ProviderBatch(f"batch_{incoming.id[:20]}", self.clock(), lines, asked, errors)
        return self._submit(incoming, batch)

    def _submit(self, incoming: SimulatedRequest, batch: _ProviderBatch) -> _ProviderBatch:
        self._batches[incoming.credential, batch.id] = batch
        self.submitted += 1
        self.asked.update(line.body for line in batch.lines)
        return batch

    def _document(self, incoming: SimulatedRequest, batch: _ProviderBatch) -> dict[str, Any]:
        self._finish(incoming, batch)
        answers = batch.answers or []
        failed = sum(each.status != 200 for each in answers)
        status = "in_progress" if batch.answers is None else "completed"
        if batch.errors:
            status = "failed"
        elif batch.cancelled is not None:
            status = "cancelled"
        at = int(batch.created + self.takes_s)
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.asked["endpoint"],
            "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
            "input_file_id": batch.asked["input_file_id"],
            "completion_window": "24h",
            "status": status,
            "output_file_id": batch.files.get("output"),
            "error_file_id": batch.files.get("errors"),
            "created_at": int(batch.created),
            "in_progress_at": int(batch.created),
            "expires_at": int(batch.created + WINDOW_S),
            "completed_at": at if status == "completed" else None,
            "cancelled_at": None if batch.cancelled is None else int(batch.cancelled),
            "request_counts": {
                "total": len(batch.lines),
                "completed": len(answers) - failed,
                "failed": failed,
            },
            "metadata": batch.asked.get("metadata"),
        }

    def _finish(self, incoming: SimulatedRequest, batch: _ProviderBatch) -> None:
        """Answer the requests of a batch whose time has come."""
        over = self.clock() >= batch.created + self.takes_s
        if batch.answers is not None or batch.errors or not (over or batch.cancelled is not None):
            return
        batch.answers = []
        for line in batch.lines if batch.cancelled is None else ():
            status, body = self.answer(incoming, line.path, line.body)
            batch.answers.append(_BatchAnswer(line.custom_id, status, msgspec.json.decode(body)))
        if not batch.asked:
            return
        succeeded = [each for each in batch.answers if each.status == 200]
        failed = [each for each in batch.answers if each.status != 200]
        for kind, answers in (("output", succeeded), ("errors", failed)):
            if answers:
                id = batch.files[kind] = f"file-{kind}-{batch.id.removeprefix('batch_')}"
                rows = b"".join(_row(batch, each) for each in answers)
                name = f"{batch.id}_{kind}.jsonl"
                self._keep(incoming.credential, name, "batch_output", rows, id)

    # --- Anthropic ---------------------------------------------------------------------------

    def _messages(self, incoming: SimulatedRequest, rest: str) -> dict[str, Any] | bytes | None:
        owner = incoming.credential
        if not rest:
            if incoming.method == "POST":
                return self._message_batch(incoming, self._make_messages(incoming))
            mine = [
                each for (of, _), each in self._batches.items() if of == owner and not each.asked
            ]
            listed = [self._message_batch(incoming, each) for each in reversed(mine)]
            found = _page(incoming, listed, "after_id")
            return {name: value for name, value in found.items() if name != "object"}
        id, _, end = rest.partition("/")
        batch = self._batches.get((owner, id))
        if batch is None:
            return None
        if end == "cancel" and batch.cancelled is None and batch.answers is None:
            batch.cancelled = self.clock()
        document = self._message_batch(incoming, batch)
        if end != "results":
            return document
        if batch.answers is None:
            raise BadRequest("the batch has not ended, so it has no results")
        cancelled = [_BatchAnswer(line.custom_id) for line in batch.lines]
        return b"".join(map(_result, batch.answers or cancelled))

    def _make_messages(self, incoming: SimulatedRequest) -> _ProviderBatch:
        asked = msgspec.json.decode(incoming.body, type=dict[str, Any])
        requests = asked.get("requests")
        if not isinstance(requests, list) or not requests:
            raise BadRequest("requests: Field required")
        lines = []
        for place, each in enumerate(requests):
            id = each.get("custom_id") if isinstance(each, dict) else None
            if not isinstance(id, str) or not _ID.fullmatch(id):
                raise BadRequest(f"requests.{place}.custom_id: must match {_ID.pattern}")
            lines.append(_Line(id, b"/v1/messages", msgspec.json.encode(each.get("params"))))
        if len({line.custom_id for line in lines}) < len(lines):
            raise BadRequest("requests: custom_id must be unique")
        batch = _ProviderBatch(f"msgbatch_{incoming.id[:20]}", self.clock(), lines, {})
        return self._submit(incoming, batch)

    def _message_batch(self, incoming: SimulatedRequest, batch: _ProviderBatch) -> dict[str, Any]:
        self._finish(incoming, batch)
        ended = batch.answers is not None
        succeeded = sum(each.status == 200 for each in batch.answers or ())
        errored = len(batch.answers or ()) - succeeded
        left = len(batch.lines) - succeeded - errored
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": {
                "processing": 0 if ended else left,
                "succeeded": succeeded,
                "errored": errored,
                "canceled": left if ended else 0,
                "expired": 0,
            },
            "created_at": _time(batch.created),
            "expires_at": _time(batch.created + WINDOW_S),
            "ended_at": _time(batch.created + self.takes_s) if ended else None,
            "cancel_initiated_at": None if batch.cancelled is None else _time(batch.cancelled),
            "archived_at": None,
            "results_url": f"/v1/messages/batches/{batch.id}/results" if ended else None,
        }


def _result(answer: _BatchAnswer) -> bytes:
    id, status, document = answer
    result: dict[str, Any] = {"type": "succeeded", "message": document}
    if status == 0:
        result = {"type": "canceled"}
    elif status != 200:
        result = {"type": "errored", "error": document}
    return msgspec.json.encode({"custom_id": id, "result": result}) + b"\n"


def _row(batch: _ProviderBatch, answer: _BatchAnswer) -> bytes:
    id, status, document = answer
    response = {"status_code": status, "request_id": f"req_{id}", "body": document}
    row = {"id": f"{batch.id}_{id}", "custom_id": id, "response": response, "error": None}
    return msgspec.json.encode(row) + b"\n"


def _read_lines(data: bytes, endpoint: str) -> tuple[list[_Line], list[dict[str, Any]]]:
    """Return the requests of a file, and its errors."""
    lines: list[_Line] = []
    errors: list[dict[str, Any]] = []
    models: set[str] = set()
    seen: set[str] = set()
    for number, raw in enumerate(filter(None, data.splitlines()), 1):
        try:
            row = msgspec.json.decode(raw, type=dict[str, Any])
            id, body = row["custom_id"], row["body"]
            models.add(body["model"])
        except (msgspec.DecodeError, KeyError, TypeError):
            errors.append(_error("invalid_json_line", "This line is not a request.", number))
            continue
        if row.get("url") != endpoint or row.get("method") != "POST":
            errors.append(_error("mismatched_url", f"url must be {endpoint}.", number))
        elif id in seen:
            errors.append(_error("duplicate_custom_id", f"{id} is already used.", number))
        elif len(models) > 1:
            errors.append(_error("mismatched_model", "All requests need the same model.", number))
        seen.add(id)
        lines.append(_Line(id, endpoint.encode(), msgspec.json.encode(body)))
    if not lines and not errors:
        errors.append(_error("empty_file", "The file has no requests.", None))
    return lines, errors


def _error(code: str, message: str, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}


def read_form(content_type: bytes, body: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the file name, or "", and the data of each field. Raises BadRequest."""
    _, options = parse_options_header(content_type.decode("latin-1"))
    try:
        parts = MultipartParser(io.BytesIO(body), options.get("boundary", "")).parts()
    except MultipartError as error:
        raise BadRequest("send the file as multipart/form-data") from error
    return {part.name: (part.filename or "", part.raw) for part in parts}


def _page(
    incoming: SimulatedRequest, listed: list[dict[str, Any]], after: str = "after"
) -> dict[str, Any]:
    """Return a page of a list, the newest first."""
    query = parse_qs(incoming.query.decode("latin-1"))
    limit = query.get("limit", [""])[0]
    size = min(int(limit), _LARGEST_PAGE) if limit.isdigit() else _PAGE
    ids = [each["id"] for each in listed]
    last = query.get(after, [""])[0]
    start = ids.index(last) + 1 if last in ids else 0
    page = listed[start : start + size]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + size < len(listed),
    }


def _missing(incoming: SimulatedRequest) -> ScriptedReply:
    message = f"No such object: {incoming.path.decode('latin-1')}"
    error = {"message": message, "type": "invalid_request_error", "code": None, "param": "id"}
    return json_reply(404, msgspec.json.encode({"error": error}))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
