"""Keeps the learning domains in memory up to date with the labels that all processes share.

The state follows from the labels: all processes that apply them in their order reach the same
state. A snapshot only saves time. A process learns from a label when it reads the label back from
the store, also from its own labels. So a slow process may be behind the others, but never ahead of
them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from headstart.decisions import Label, Rule
from headstart.errors import StageError, StoreError
from headstart.observe import Learned, Observer, StageFailed, logger
from headstart.policies.learned_rule.domain import Domain, LabelEffect, SnapshotError
from headstart.policies.learned_rule.error_limit import MOST_ENTRY_STATS, Trust
from headstart.policies.match import Veto, Vetoes
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.interfaces import Store

Saved = TypeVar("Saved", "SavedDomain", "SavedVetoes")

POLL_S = 0.25
"""Longest time until this process learns from a label of another process."""
SAVE_S = 30.0
"""Time between snapshots. After a crash, the labels since the last one are applied again."""
RETRY_S = 5.0
"""Pause after an unexpected error of the store, so that the log stays readable."""
LABELS_PER_TURN = 50
"""Number of labels that are applied before other tasks get a turn."""
MOST_DOMAINS = 256
"""Number of domains in memory. One takes 10 kB when new, 60 kB with 200 labels, 700 kB with 2,000
and 3.3 MB with all the entries that it may remember."""
MOST_LABELS = 1_000_000
"""Labels of all domains in memory, up to ``MOST_ENTRY_STATS`` each: some 350 MB."""


class LearnerError(StageError):
    """The learned state could not be read, so nothing may be served by meaning."""

    stage = "learner"


class SavedDomain(Frozen):
    """A domain's document in the store: its snapshot, and the last label in it."""

    cursor: str
    snapshot: bytes


class SavedVetoes(Frozen):
    """The store's document of people's vetoes, and the last label in it."""

    cursor: str
    rows: dict[str, Veto]


@dataclass(slots=True, eq=False)
class _LoadedDomain:
    """A domain in memory, its last label, and whether its snapshot is out of date."""

    domain: Domain
    cursor: str
    changed: bool = False
    tripped: bool = False
    """Whether the log has a line that near misses stopped the cold start."""


@dataclass(slots=True, eq=False)
class Domains:
    """Loads domains on demand and applies new labels; ``run`` it in a background task.

    ``fresh`` makes a domain that knows only the operator's prior; ``restore`` reads a snapshot and
    raises SnapshotError for one that this version cannot use.
    """

    store: Store
    fresh: Callable[[], Domain]
    restore: Callable[[bytes], Domain]
    observer: Observer
    most: int = MOST_DOMAINS
    vetoes: Vetoes = field(default_factory=Vetoes)
    """The entries that people called wrong; complete once any domain is in memory."""
    _loaded: OrderedDict[str, _LoadedDomain] = field(default_factory=OrderedDict)
    _loading: dict[str, anyio.Event] = field(default_factory=dict)
    _lock: anyio.Lock = field(default_factory=anyio.Lock)
    _cursor: str | None = None
    """The last label read; None before people's vetoes were read."""
    _saved_cursor: str = ""
    _wake: anyio.Event = field(default_factory=anyio.Event)

    def __len__(self) -> int:
        return len(self._loaded)

    def get(self, name: str) -> Domain:
        """Return a loaded domain. Raises LearnerError if it is not in memory any more."""
        loaded = self._loaded.get(name)
        if loaded is None:
            raise LearnerError("the learning domain is not in memory")
        return loaded.domain

    def find(self, name: str) -> Domain | None:
        """Return a domain if it is in memory."""
        loaded = self._loaded.get(name)
        return None if loaded is None else loaded.domain

    def names(self) -> tuple[str, ...]:
        """Return the names of the domains in memory."""
        return tuple(self._loaded)

    async def load(self, name: str) -> Domain:
        """Return a domain, brought up to date with its labels. Raises StoreError."""
        while (loaded := self._loaded.get(name)) is None:
            if name in self._loading:
                await self._loading[name].wait()
                continue
            self._loading[name] = anyio.Event()
            try:
                await self._load(name)
            finally:
                self._loading.pop(name).set()
        self._loaded.move_to_end(name)
        return loaded.domain

    async def follow(self) -> None:
        """Apply the labels that the store has now. On return all earlier ones are in force.

        Raises StoreError.
        """
        async with self._lock:
            await self._advance()

    def wake(self) -> None:
        """Read the labels now, because this process has just written one."""
        self._wake.set()

    async def run(self) -> None:
        """Apply labels as they come and save snapshots, until cancelled."""
        saved_at = anyio.current_time()
        while True:
            with anyio.move_on_after(POLL_S):
                await self._wake.wait()
            self._wake = anyio.Event()
            try:
                async with self._lock:
                    await self._advance()
                if anyio.current_time() - saved_at > SAVE_S:
                    await self._save_changed()
                    saved_at = anyio.current_time()
            except StoreError as error:
                self._report(error)
                await anyio.sleep(POLL_S)
            except Exception as error:  # noqa: BLE001 - logged; see below
                # If learning ended here, hits would go on, and no audit could stop them.
                logger.exception("learning from labels failed; the next try follows soon")
                self._report(error)
                await anyio.sleep(RETRY_S)

    async def aclose(self) -> None:
        """Save changed domains. Cancel ``run`` first."""
        try:
            await self._save_changed()
        except StoreError as error:
            self._report(error)

    # --- the way in and out of memory -------------------------------------------------------------

    async def _load(self, name: str) -> None:
        loaded = await self._revive(name)
        await self._catch_up(name, loaded)
        async with self._lock:
            # Later labels are applied here, and from now on by ``_advance``.
            await self._advance()
            await self._catch_up(name, loaded)
            self._loaded[name] = loaded
        while self._is_full():
            await self._evict()

    def _is_full(self) -> bool:
        labels = sum(
            min(loaded.domain.labels, MOST_ENTRY_STATS) for loaded in self._loaded.values()
        )
        return len(self._loaded) > self.most or (labels > MOST_LABELS and len(self._loaded) > 1)

    async def _evict(self) -> None:
        """Take the least recently used domain out of memory. Its labels can restore it."""
        name, loaded = next(iter(self._loaded.items()))
        if loaded.changed:
            try:
                await self._save(name, loaded)
            except StoreError as error:
                self._report(error)
        # The domain was not used while its snapshot was written.
        if next(iter(self._loaded), None) == name:
            del self._loaded[name]

    async def _revive(self, name: str) -> _LoadedDomain:
        """Return a domain as its snapshot has it, or a fresh one."""
        what = "a learned snapshot is unreadable: learning it again"
        saved = await self._saved(_document(name), SavedDomain, what)
        if saved is not None:
            try:
                return _LoadedDomain(self.restore(saved.snapshot), saved.cursor)
            except SnapshotError as error:
                logger.warning("learning domain %s starts again: %s", name[:12], error)
        return _LoadedDomain(self.fresh(), "")

    async def _saved(self, name: str, kind: type[Saved], unreadable: str) -> Saved | None:
        """Return a document of the store, or None; log ``unreadable`` if it is."""
        document = await self.store.load_document(name)
        try:
            return None if document is None else msgspec.msgpack.decode(document, type=kind)
        except msgspec.DecodeError:
            logger.warning(unreadable)
            return None

    async def _catch_up(self, name: str, loaded: _LoadedDomain) -> None:
        while page := await self.store.read_labels(loaded.cursor, domain=name):
            await self._apply_all(page, {name: loaded})

    async def _advance(self) -> None:
        """Apply the labels after the last one read. The caller holds the lock."""
        if self._cursor is None:
            self._cursor = self._saved_cursor = await self._load_vetoes()
        while page := await self.store.read_labels(self._cursor):
            for _, label in page:
                self.vetoes.apply(label)
            await self._apply_all(page, self._loaded)
            self._cursor = page[-1][0]

    async def _load_vetoes(self) -> str:
        """Read people's vetoes; return the last label in them. Without them read all labels."""
        what = "the document of people's vetoes is unreadable: reading all labels"
        saved = await self._saved(_VETOES, SavedVetoes, what)
        if saved is None:
            return ""
        self.vetoes = Vetoes(saved.rows)
        return saved.cursor

    async def _apply_all(
        self, page: Sequence[tuple[str, Label]], domains: Mapping[str, _LoadedDomain]
    ) -> None:
        """Apply to each of ``domains`` the labels that it has not seen."""
        for number, (cursor, label) in enumerate(page, 1):
            loaded = domains.get(label.domain)
            if loaded is not None and cursor > loaded.cursor:
                self._apply(label.domain, loaded, cursor, label)
            if number % LABELS_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()

    def _apply(self, name: str, loaded: _LoadedDomain, cursor: str, label: Label) -> None:
        before = loaded.domain.rule
        loaded.cursor = cursor
        loaded.changed = True
        try:
            change = loaded.domain.apply(label)
        except Exception as error:  # noqa: BLE001 - logged; see below
            # All processes skip it: one bad row must not end learning.
            logger.exception("a label of learning domain %s cannot be applied", name[:12])
            self._report(error)
            return
        if change.alarm or (change.redrawn and change.rule is not before):
            self._report_change(name, loaded.domain, change)
        if change.rule is Rule.COLD_START and change.trust is Trust.NONE and not loaded.tripped:
            loaded.tripped = True
            self._report_change(name, loaded.domain, change)

    def _report_change(self, name: str, domain: Domain, change: LabelEffect) -> None:
        """Report a domain whose rule changed; log the reason if it serves less than at first."""
        status = domain.status()
        self.observer.notify(
            Learned(
                domain=name,
                rule=status.rule,
                threshold=status.threshold,
                alarm=change.alarm,
                serves=status.serves,
                cold_start_serves=status.cold_start_serves,
            )
        )
        if status.rule is Rule.COLD_START:
            logger.warning(
                "learning domain %s: %d of %d near misses had another answer; only prompts with the"
                " same words are matched there before enough was learned",
                name[:12],
                status.near_misses_different,
                status.near_misses,
            )
        elif change.alarm:
            logger.warning(
                "learning domain %s: audits found more wrong hits than max_error allows; nothing is"
                " matched by meaning there until it has learned again",
                name[:12],
            )
        elif status.serves < status.cold_start_serves:
            logger.warning(
                "learning domain %s: its own labels allow less than the cold start did (%.0f %% of"
                " candidates, not %.0f %%): too many were wrong for cache.max_error",
                name[:12],
                100 * status.serves,
                100 * status.cold_start_serves,
            )

    async def _save_changed(self) -> None:
        cursor = self._cursor
        if cursor is not None and cursor != self._saved_cursor:
            saved = SavedVetoes(cursor=cursor, rows=self.vetoes.rows())
            await self.store.save_document(_VETOES, msgspec.msgpack.encode(saved))
            self._saved_cursor = cursor
        for name, loaded in list(self._loaded.items()):
            if loaded.changed:
                await self._save(name, loaded)

    async def _save(self, name: str, loaded: _LoadedDomain) -> None:
        loaded.changed = False
        saved = SavedDomain(cursor=loaded.cursor, snapshot=loaded.domain.snapshot())
        try:
            await self.store.save_document(_document(name), msgspec.msgpack.encode(saved))
        except BaseException:
            loaded.changed = True
            raise

    def _report(self, error: Exception) -> None:
        self.observer.notify(StageFailed.of("learner", error))


_VETOES = "vetoes"
"""The name of the document with people's vetoes. It is for all domains, because several may find
one entry."""


def _document(name: str) -> str:
    return f"learned/{name}"
