"""The turns of conversations in memory: bounds, holders, items and entries of the store."""

from __future__ import annotations

from typing import Any

from headstart.middleware.kept_turns import CALLERS_SHARE, KeptTurn, TurnMemory
from headstart.settings import ConversationSettings


def memory(**limits: Any) -> TurnMemory:
    return TurnMemory(ConversationSettings(**limits))


def turn(id: str, **fields: Any) -> KeptTurn:
    described: dict[str, Any] = {
        "id": id,
        "previous": None,
        "input": b"[]",
        "response": b"x" * 1000,
        "created": 1000.0,
        "upstream": "up",
        "own": True,
    }
    return KeptTurn(**(described | fields))


def kept(turns: TurnMemory, owner: str, *ids: str) -> list[str]:
    return [id for id in ids if turns.find(owner, id) is not None]


def test_a_caller_has_exactly_its_share_of_answers() -> None:
    turns = memory(max_answers=2 * CALLERS_SHARE)
    for id in ("r1", "r2"):
        turns.put("a", turn(id))
    assert kept(turns, "a", "r1", "r2") == ["r1", "r2"]
    turns.put("a", turn("r3"))
    assert kept(turns, "a", "r1", "r2", "r3") == ["r2", "r3"]


def test_a_caller_has_exactly_its_share_of_bytes() -> None:
    size = turn("r1").size
    turns = memory(max_bytes=2 * size * CALLERS_SHARE)
    for id in ("r1", "r2"):
        turns.put("a", turn(id))
    assert kept(turns, "a", "r1", "r2") == ["r1", "r2"]
    turns.put("a", turn("r3"))
    assert kept(turns, "a", "r1", "r2", "r3") == ["r2", "r3"]


def test_an_answer_as_large_as_the_share_is_kept_and_a_larger_one_is_not() -> None:
    turns = memory(max_bytes=turn("r1").size * CALLERS_SHARE)
    turns.put("a", turn("r1"))
    assert kept(turns, "a", "r1") == ["r1"]
    turns.put("a", turn("r2", response=b"x" * 1001))
    assert kept(turns, "a", "r1", "r2") == ["r1"]


def test_all_callers_together_have_exactly_the_bytes_of_all() -> None:
    turns = memory(max_bytes=turn("r1").size * CALLERS_SHARE)
    for owner in "abcd":
        turns.put(owner, turn("r1"))
    assert [owner for owner in "abcd" if kept(turns, owner, "r1")] == ["a", "b", "c", "d"]
    turns.put("a", turn("r1"))  # now b was silent longest
    turns.put("e", turn("r1"))
    assert [owner for owner in "abcde" if kept(turns, owner, "r1")] == ["a", "c", "d", "e"]


def test_all_callers_together_have_exactly_the_answers_of_all() -> None:
    turns = memory(max_answers=CALLERS_SHARE)
    for owner in "abcde":
        turns.put(owner, turn("r1"))
    assert [owner for owner in "abcde" if kept(turns, owner, "r1")] == ["b", "c", "d", "e"]


def test_a_caller_without_answers_is_not_asked_for_its_oldest() -> None:
    turns = memory(max_answers=CALLERS_SHARE)
    turns.put("silent", turn("r1"))
    turns.drop("silent", "r1")
    for owner in "abcde":
        turns.put(owner, turn("r1"))
    assert [owner for owner in "abcde" if kept(turns, owner, "r1")] == ["b", "c", "d", "e"]


def test_an_answer_that_is_kept_again_counts_once() -> None:
    turns = memory(max_answers=8, max_bytes=turn("r1").size * 2 * CALLERS_SHARE)
    for _ in range(20):
        turns.put("a", turn("r1"))
        turns.put("b", turn("r2"))
    turns.put("a", turn("r3"))
    assert kept(turns, "a", "r1", "r3") == ["r1", "r3"]
    assert kept(turns, "b", "r2") == ["r2"]


def test_items_lead_to_the_newest_answer_that_has_them() -> None:
    turns = memory()
    turns.put("a", turn("r1", items=("i1", "i2")))
    turns.put("a", turn("r2", items=("i2", "i3")))
    newest = [turns.find_by_item("a", id) for id in ("i1", "i2", "i3")]
    assert [each and each.id for each in newest] == ["r1", "r2", "r2"]
    turns.drop("a", "r1")
    left = [turns.find_by_item("a", id) for id in ("i1", "i2", "i3")]
    assert [each and each.id for each in left] == [None, "r2", "r2"]
    assert turns.find_by_item("b", "i2") is None
    assert turns.find_by_item("a", "r2") is None


def test_ids_have_the_callers_that_still_have_them() -> None:
    turns = memory()
    for owner in "ab":
        turns.put(owner, turn("r1", items=("i1",)))
    assert turns.holders("r1") == turns.holders("i1") == {"a", "b"}
    turns.drop("a", "r1")
    turns.drop("a", "r1")
    assert turns.holders("r1") == turns.holders("i1") == {"b"}
    turns.drop("b", "r1")
    assert turns.holders("r1") == turns.holders("i1") == frozenset()


def test_entries_of_the_store_are_known_as_long_as_somebody_has_the_answer() -> None:
    turns = memory()
    turns.note_entry("r1", "e0")  # nobody has it
    assert turns.entries_of("r1") == ()
    for owner in "ab":
        turns.put(owner, turn("r1", items=("i1",)))
    turns.note_entry("r1", "e1")
    turns.note_entry("r1", "e2")
    turns.note_entry("i1", "e3")
    assert turns.entries_of("r1") == ("e2",)
    assert turns.ids_of(["e0", "e1", "e2", "e3"]) == turns.ids_of(None) == ["r1", "i1"]
    turns.drop("a", "r1")
    assert turns.ids_of(None) == ["r1", "i1"]
    turns.drop("b", "r1")
    assert turns.ids_of(["e2", "e3"]) == turns.ids_of(None) == []


def test_a_deletion_comes_after_the_answer_and_before_a_later_one() -> None:
    first = turn("r1")
    deleted = turn("r1", response=b"", deleted=True)
    later = turn("r1", created=1000.5)
    assert first.order < deleted.order < later.order


def test_only_an_empty_turn_that_was_not_deleted_is_a_pointer() -> None:
    assert turn("i1", previous="r1", response=b"").is_pointer
    assert not turn("r1").is_pointer
    assert not turn("r1", response=b"", deleted=True).is_pointer
