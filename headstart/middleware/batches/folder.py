"""The folder of ``/v1/files`` and ``/v1/batches``: what each caller keeps there. Its I/O blocks.

Each caller has a folder of its own, so that nobody finds the files of another one. A file or batch
is a JSON document with its data beside it. Only this user of the system may read them.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import secrets
from email.message import Message
from hashlib import sha256
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from headstart.errors import InvalidRequest
from headstart.types import Frozen

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

ID = re.compile(r"(?:file-|batch_)[0-9a-f]{24}")
LEAST_BYTES = 4096
"""What a small file counts for: it takes a block of the disk, and its place in the folder."""
LONGEST_HEADERS = 16 * 1024
"""The longest headers of a field of a form."""
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
    """How many requests a batch has, and what became of them."""

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
        """Nothing of it changes any more."""
        return self.status in ENDED


Kept = TypeVar("Kept", bound=KeptFile | KeptBatch)
_PREFIXES: dict[type[Any], str] = {KeptFile: "file-", KeptBatch: "batch_"}


def new_id(prefix: str) -> str:
    """Return an id that nobody can guess."""
    return prefix + secrets.token_hex(12)


class BatchFolder:
    """Files and batches on the disk, by their owners. Methods raise OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder, for this user of the system alone, and drop uploads that broke off."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in self.root.glob("*.part"):
            part.unlink(missing_ok=True)

    def of(self, owner: str) -> Path:
        """Return the folder of a caller."""
        return self.root / sha256(owner.encode()).hexdigest()[:32]

    def path(self, owner: str, id: str, kind: str) -> Path:
        """Return the place of the data, the journal or the document of an id."""
        return self.of(owner) / f"{id}.{kind}"

    def save(self, owner: str, document: KeptFile | KeptBatch) -> None:
        """Write a document. It appears as a whole."""
        place = self.path(owner, document.id, "json")
        place.parent.mkdir(mode=0o700, exist_ok=True)
        part = place.with_suffix(".new")
        part.touch(0o600)
        part.write_bytes(msgspec.json.encode(document))
        part.replace(place)

    def find(self, owner: str, id: str, kind: type[Kept]) -> Kept | None:
        """Return the document of an id, if the caller has it."""
        if not (ID.fullmatch(id) and id.startswith(_PREFIXES[kind])):
            return None
        try:
            found = msgspec.json.decode(self.path(owner, id, "json").read_bytes(), type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        if isinstance(found, KeptBatch) and not found.has_ended:
            with contextlib.suppress(FileNotFoundError):
                at = int(self.path(owner, id, "cancel").stat().st_mtime)
                return msgspec.structs.replace(found, status="cancelling", cancelling_at=at)
        return found

    def cancel(self, owner: str, id: str) -> None:
        """Mark a batch for the process that runs it."""
        self.path(owner, id, "cancel").touch(0o600)

    def is_cancelled(self, owner: str, id: str) -> bool:
        """Return whether a batch has such a mark."""
        return self.path(owner, id, "cancel").exists()

    def listed(self, owner: str, kind: type[Kept]) -> list[Kept]:
        """Return all documents of a caller, the newest first."""
        ids = [each.stem for each in self.of(owner).glob(f"{_PREFIXES[kind]}*.json")]
        found = [each for id in ids if (each := self.find(owner, id, kind)) is not None]
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def keep(self, owner: str, data: Path, filename: str, purpose: str, now: float) -> KeptFile:
        """Make a file of ``data``, which moves into the folder of its owner."""
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
        self.save(owner, file)
        return file

    def delete(self, owner: str, id: str) -> None:
        """Delete a file and its data."""
        for kind in ("json", "data"):
            self.path(owner, id, kind).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """Return what all files of all callers take."""
        return sum(max(each.st_size, LEAST_BYTES) for _, each in self._files())

    def sweep(self, before: float) -> int:
        """Delete what was last written before this Unix time; return how many files."""
        old = [path for path, stat in self._files() if stat.st_mtime < before]
        for each in old:
            each.unlink(missing_ok=True)
        return len(old)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield all files. Others may delete some of them meanwhile."""
        for path in self.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if S_ISREG(found.st_mode):
                    yield path, found


# --- uploads ---------------------------------------------------------------------------------


class FormField(NamedTuple):
    """A field of a form: the name of its file, "" if it is none, and where its data is."""

    filename: str
    start: int
    end: int


def read_upload(upload: Path, content_type: str, into: Path) -> tuple[str, str]:
    """Write the file of a form into ``into``; return its name and its purpose.

    Raises InvalidRequest.
    """
    kind = Message()
    kind["content-type"] = content_type
    boundary = kind.get_param("boundary")
    if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise InvalidRequest("send the file as multipart/form-data with a boundary")
    if not upload.stat().st_size:
        raise InvalidRequest("the body is empty")
    with (
        upload.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        fields = form_fields(data, boundary.encode())
        if "file" not in fields or "purpose" not in fields:
            raise InvalidRequest("the form needs the fields 'file' and 'purpose'")
        purpose = data[fields["purpose"].start : fields["purpose"].end][:64]
        found = fields["file"]
        into.touch(0o600)
        with into.open("wb") as out:
            for start in range(found.start, found.end, 2**20):
                out.write(data[start : min(start + 2**20, found.end)])
    return found.filename or "file", purpose.decode("utf-8", "replace")


def form_fields(data: bytes | mmap.mmap, boundary: bytes) -> dict[str, FormField]:
    """Return the fields of a form by name. Raises InvalidRequest for a form that is cut."""
    fields: dict[str, FormField] = {}
    mark = b"--" + boundary
    at = data.find(mark)
    while at >= 0:
        at += len(mark)
        if data[at : at + 2] == b"--":
            return fields
        head = data.find(b"\r\n\r\n", at, at + LONGEST_HEADERS)
        end = data.find(b"\r\n" + mark, max(head, at))
        if head < 0 or end < 0:
            break
        headers = Message()
        for line in data[at:head].decode("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip():
                headers[name.strip()] = value.strip()
        named = headers.get_param("name", header="content-disposition")
        if isinstance(named, str):
            fields[named] = FormField(headers.get_filename() or "", head + 4, end)
        at = end + 2
    raise InvalidRequest("the form ends before its last boundary, or a field has no headers")
