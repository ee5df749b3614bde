"""Nearest neighbours by cosine: exact search over fp16 rows, one flat index a partition.

Most partitions hold a handful of vectors (one conversation, one system prompt), a few hold many
thousands. A partition of up to ``SMALL_ROWS`` rows is therefore one immutable ``bytes``, which a
search copies into a FAISS index that its thread keeps; only larger ones own a FAISS index. Both
run the same arithmetic, so promotion changes no similarity.

Another kind of partition, such as IVF-SQ8 for a million rows, implements ``Partition``, and
``FlatPartition.add`` returns it as its successor.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from headstart.decisions import Neighbor
from headstart.errors import EncoderError, VectorIndexError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray


@contextmanager
def _unheard(name: str) -> Iterator[None]:
    """Let a logger speak of errors alone."""
    speaker = logging.getLogger(name)
    level = speaker.level
    speaker.setLevel(logging.ERROR)
    try:
        yield
    finally:
        speaker.setLevel(level)


# It tries one build for each instruction set, and logs those that it does not have like failures.
with _unheard("faiss.loader"):
    import faiss

SMALL_ROWS = 64
"""Copying 64 rows costs a search 5 µs; a FAISS index of its own costs a partition 390 bytes."""
MIN_COMPACTED = 64
"""Tombstones below this number are never worth a copy of the partition."""
MAX_DEAD_SHARE = 0.25
MAX_LENGTH_ERROR = 0.01


def pack_vector(sentence: NDArray[np.float32]) -> bytes:
    """Return a unit f32[d] vector as stores and indexes keep it: little-endian fp16.

    Raises EncoderError when its length is not 1: similarities would not be cosines.
    """
    length = float(np.linalg.norm(sentence))
    if not abs(length - 1.0) <= MAX_LENGTH_ERROR:  # so that NaN is refused too
        raise EncoderError(f"the encoder returned a vector of length {length:.3g}")
    return sentence.astype("<f2").tobytes()


class FaissIndex:
    """A VectorIndex on FAISS. Searches never wait for one another's partitions.

    Writers are serialised and may take milliseconds in a large partition: call them off the event
    loop. A search costs some 10 µs in a small partition and 20 µs more for each 1,000 rows.
    """

    def __init__(self, dimension: int) -> None:
        self._codec = Codec(dimension)
        self._partitions: dict[str, Partition] = {}
        self._homes: dict[str, str] = {}
        self._writing = threading.Lock()

    @property
    def partitions(self) -> int:
        """Number of partitions that hold a vector."""
        return len(self._partitions)

    def size(self, partition: str | None = None) -> int:
        """Number of live vectors, of one partition or of all. Never waits."""
        if partition is None:
            return len(self._homes)
        found = self._partitions.get(partition)
        return 0 if found is None else len(found)

    def __contains__(self, id: object) -> bool:
        """Return whether an id is indexed."""
        return id in self._homes

    def add(self, partition: str, id: str, vector: bytes) -> None:
        """Add a unit fp16 row. The same id again replaces it, wherever it was.

        Raises VectorIndexError when the vector's dimension is not the index's.
        """
        row = self._codec.check(vector)
        with self._writing:
            if id in self._homes:
                self._remove((id,))
            current = self._partitions.get(partition)
            if current is None:
                changed: Partition = SmallPartition(self._codec, partition, (id,), row)
            else:
                changed = current.add(id, row)
            self._partitions[changed.name] = changed
            self._homes[id] = changed.name

    def search(self, partition: str, vector: bytes, k: int) -> Sequence[Neighbor]:
        """Return up to ``k`` neighbours, most similar first. Empty for an unknown partition.

        Raises VectorIndexError when the vector's dimension is not the index's.
        """
        query = self._codec.query(self._codec.check(vector))
        found = self._partitions.get(partition)
        return [] if found is None else found.search(query, k)

    def remove(self, ids: Sequence[str]) -> None:
        """Forget ids; unknown ones are ignored. Cheapest in batches."""
        with self._writing:
            self._remove(ids)

    def _remove(self, ids: Sequence[str]) -> None:
        doomed: dict[str, set[str]] = {}
        for id in ids:
            partition = self._homes.pop(id, None)
            if partition is not None:
                doomed.setdefault(partition, set()).add(id)
        for partition, gone in doomed.items():
            left = self._partitions[partition].remove(gone)
            if left is None:
                del self._partitions[partition]
            else:
                self._partitions[partition] = left


class Partition(Protocol):
    """Rows whose answers are comparable. Searches run beside at most one writer.

    A change returns the partition to use from now on: itself, or a successor of another kind.
    """

    @property
    def name(self) -> str:
        """One string for all rows: callers bring an equal one with each."""

    def __len__(self) -> int: ...

    def search(self, query: NDArray[np.float32], k: int) -> list[Neighbor]: ...

    def add(self, id: str, row: bytes) -> Partition: ...

    def remove(self, gone: Collection[str]) -> Partition | None:
        """Forget ids, all of which are here. None: nothing is left."""


class Codec:
    """How rows are kept and compared, and each thread's scratch index."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._row_bytes = 2 * dimension
        self._threads = threading.local()

    def check(self, vector: bytes) -> bytes:
        """Return the vector. Raises VectorIndexError when its dimension is another."""
        if len(vector) != self._row_bytes:
            raise VectorIndexError(
                f"a vector of {len(vector)} bytes in an index of {self._row_bytes} bytes a row"
            )
        return vector

    def query(self, vector: bytes) -> NDArray[np.float32]:
        """Return a row as FAISS takes queries, f32[1, d]."""
        return np.frombuffer(vector, "<f2").astype(np.float32).reshape(1, -1)

    def codes(self, rows: bytes) -> NDArray[np.uint8]:
        """Return rows as FAISS takes codes, u8[n, 2 d], without a copy."""
        return np.frombuffer(rows, np.uint8).reshape(-1, self._row_bytes)

    def codes_of(self, index: faiss.IndexScalarQuantizer) -> NDArray[np.uint8]:
        """Return an index's rows, u8[n, 2 d], without a copy: they live as long as it does."""
        size = index.ntotal * self._row_bytes
        codes: NDArray[np.uint8] = faiss.rev_swig_ptr(index.codes.data(), size)
        return codes.reshape(-1, self._row_bytes)

    def new_index(self, capacity: int = SMALL_ROWS) -> faiss.IndexScalarQuantizer:
        """Return an empty flat index with room for ``capacity`` rows, kept byte for byte."""
        index = faiss.IndexScalarQuantizer(
            self._dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        index.codes.resize(capacity * self._row_bytes)
        index.codes.resize(0)  # shrinking a std::vector keeps its memory
        return index

    def scratch(self) -> faiss.IndexScalarQuantizer:
        """Return this thread's scratch index, empty."""
        index: faiss.IndexScalarQuantizer | None = getattr(self._threads, "scratch", None)
        if index is None:
            # OpenMP threads would spin on the cores that serve requests; the setting is a thread's.
            faiss.omp_set_num_threads(1)
            index = self._threads.scratch = self.new_index()
        index.reset()
        return index


class SmallPartition(msgspec.Struct, frozen=True, gc=False):
    """Up to ``SMALL_ROWS`` rows. Immutable, so that searches need no lock."""

    codec: Codec
    name: str
    ids: tuple[str, ...]
    rows: bytes

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, query: NDArray[np.float32], k: int) -> list[Neighbor]:
        index = self.codec.scratch()
        index.add_sa_codes(self.codec.codes(self.rows))
        similarities, rows = index.search(query, min(k, len(self.ids)))
        return [
            neighbor(self.ids[row], similarity)
            for similarity, row in zip(similarities[0].tolist(), rows[0].tolist(), strict=True)
            if row >= 0
        ]

    def add(self, id: str, row: bytes) -> Partition:
        ids, rows = (*self.ids, id), self.rows + row
        if len(ids) > SMALL_ROWS:
            return FlatPartition(self.codec, self.name, list(ids), self.codec.codes(rows))
        return SmallPartition(self.codec, self.name, ids, rows)

    def remove(self, gone: Collection[str]) -> Partition | None:
        kept = [place for place, id in enumerate(self.ids) if id not in gone]
        if not kept:
            return None
        rows = self.codec.codes(self.rows)[kept].tobytes()
        return SmallPartition(self.codec, self.name, tuple(self.ids[place] for place in kept), rows)


class FlatPartition:
    """Many rows in a FAISS index. A removed row stays as a tombstone until the next rebuild.

    FAISS would double its memory to grow. A full partition is rebuilt an eighth larger instead,
    which adds some 6 KB of copying to each row and leaves 6 % spare.
    """

    __slots__ = ("_capacity", "_codec", "_dead", "_ids", "_index", "_writing", "name")

    def __init__(
        self, codec: Codec, name: str, ids: list[str | None], codes: NDArray[np.uint8]
    ) -> None:
        self.name = name
        self._codec = codec
        self._ids = ids
        self._dead = 0
        self._capacity = len(ids) + len(ids) // 8 + 1
        self._index = codec.new_index(self._capacity)
        self._index.add_sa_codes(codes)
        self._writing = threading.Lock()
        """FAISS may not search while it writes a row."""

    def __len__(self) -> int:
        return len(self._ids) - self._dead

    def search(self, query: NDArray[np.float32], k: int) -> list[Neighbor]:
        self._codec.scratch()  # sets the thread's OpenMP limit
        fetch = k + min(self._dead, k)
        while True:
            with self._writing:
                similarities, rows = self._index.search(query, min(fetch, self._index.ntotal))
            found = [
                neighbor(id, similarity)
                for similarity, row in zip(similarities[0].tolist(), rows[0].tolist(), strict=True)
                if row >= 0 and (id := self._ids[row]) is not None
            ]
            if len(found) >= k or fetch >= k + self._dead:
                return found[:k]
            fetch *= 2  # tombstones crowd the query: look past them

    def add(self, id: str, row: bytes) -> Partition:
        if len(self._ids) == self._capacity:
            return self._rebuilt().add(id, row)
        self._ids.append(id)  # before its row can be found
        with self._writing:
            self._index.add_sa_codes(self._codec.codes(row))
        return self

    def remove(self, gone: Collection[str]) -> Partition | None:
        wanted = len(gone)
        for row, id in enumerate(self._ids):
            if id in gone:
                self._ids[row] = None
                self._dead += 1
                wanted -= 1
                if not wanted:  # eviction takes the oldest rows, which come first
                    break
        if not len(self):
            return None
        if self._dead > max(MIN_COMPACTED, MAX_DEAD_SHARE * len(self._ids)):
            return self._rebuilt()
        return self

    def _rebuilt(self) -> Partition:
        """Return a copy without tombstones. Searches may go on here meanwhile."""
        codes = self._codec.codes_of(self._index)
        if not self._dead:
            return FlatPartition(self._codec, self.name, list(self._ids), codes)
        kept = [row for row, id in enumerate(self._ids) if id is not None]
        ids = [id for id in self._ids if id is not None]
        if len(ids) <= SMALL_ROWS:
            return SmallPartition(self._codec, self.name, tuple(ids), codes[kept].tobytes())
        return FlatPartition(self._codec, self.name, list(ids), codes[kept])


def neighbor(id: str, similarity: float) -> Neighbor:
    """Return a neighbour; fp16 rounding leaves the cosine of equal vectors a little above 1."""
    return Neighbor(id=id, similarity=min(similarity, 1.0))
