from __future__ import annotations

from headstart.types import Memo


class Counted:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, text: str) -> str:
        self.calls.append(text)
        return text.upper()


def test_answers_are_made_once() -> None:
    memo, function = Memo(), Counted()
    assert [memo.call(function, text) for text in ("a", "b", "a")] == ["A", "B", "A"]
    assert function.calls == ["a", "b"]


def test_functions_do_not_share_answers() -> None:
    memo = Memo()
    assert memo.call(str.upper, "a") == "A"
    assert memo.call(str.title, "ab") == "Ab"


def test_the_least_recently_used_leave_when_it_is_full() -> None:
    memo, function = Memo(max_chars=500), Counted()
    for text in ("a", "b", "a", "c", "a", "b"):
        memo.call(function, text)
    assert function.calls == ["a", "b", "c", "b"]


def test_an_answer_too_large_is_not_kept() -> None:
    memo, function = Memo(max_chars=500), Counted()
    for _ in range(2):
        memo.call(function, "x" * 400)
    assert len(function.calls) == 2
