"""Search/replace blocks applied to a document, and whether one is asked to be changed at all."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.output.document_edits import (
    EditDoubt,
    EditedDocument,
    EditReader,
    EditRequest,
    find_edit,
    has_markers,
)

DOCUMENT = "import os\n\n\ndef one():\n    return 1\n\n\ndef two():\n    return 2\n"


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def read(answer: str, document: str = DOCUMENT, size: int = 10_000) -> EditReader:
    reader = EditReader(document)
    for at in range(0, len(answer), size):
        reader.feed(answer[at : at + size])
    return reader


def edited(answer: str, document: str = DOCUMENT) -> EditedDocument:
    found = read(answer, document).end()
    assert found is not None
    return found


def doubt(answer: str, document: str = DOCUMENT) -> EditDoubt | None:
    reader = read(answer, document)
    assert reader.end() is None
    return reader.doubt


RENAME = block("def one():\n    return 1", "def uno():\n    return 1")
SECOND = block("    return 2", "    return 3")


def test_blocks_change_their_places_in_any_order() -> None:
    wanted = DOCUMENT.replace("one", "uno").replace("return 2", "return 3")
    assert edited(RENAME + SECOND).document == wanted
    assert edited(SECOND + RENAME).document == wanted


def test_lines_are_added_and_taken_away() -> None:
    assert edited(block("import os", "import os\nimport re")).document == DOCUMENT.replace(
        "import os", "import os\nimport re"
    )
    gone = "<<<<<<< SEARCH\ndef two():\n    return 2\n=======\n>>>>>>> REPLACE\n"
    assert edited(gone).document == DOCUMENT.replace("def two():\n    return 2\n", "")


def test_words_around_the_blocks_are_kept_and_their_fences_are_not() -> None:
    answer = f"Sure:\n\n```python\n{RENAME}```\n\nAnd:\n```\n{SECOND}```\nDone."
    found = edited(answer)
    assert (found.before, found.after) == ("Sure:", "And:\n\nDone.")


def test_one_fence_may_hold_all_blocks() -> None:
    found = edited(f"```diff\n{RENAME}\n{SECOND}```")
    assert (found.before, found.after) == ("", "")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (block("def three():", "def four():"), EditDoubt.NOT_FOUND),
        (block("def one():\n  return 1", "def uno():\n  return 1"), EditDoubt.NOT_FOUND),
        (block("", "import re"), EditDoubt.MALFORMED),
        (block("    return", "    yield"), EditDoubt.NOT_FOUND),
        (block("import os", "import os"), EditDoubt.UNCHANGED),
        (RENAME + block("    return 1", "    return 5"), EditDoubt.OVERLAPPING),
        (RENAME + RENAME, EditDoubt.OVERLAPPING),
        (block("def one():\n    return 1", "def uno():\n    # ... as before"), EditDoubt.ELIDED),
        ("<<<<<<< SEARCH\nimport os\n=======\nimport re\n", EditDoubt.MALFORMED),
        ("<<<<<<< SEARCH\nimport os\n>>>>>>> REPLACE\n", EditDoubt.MALFORMED),
        ("<<<<<<< ORIGINAL\nimport os\n=======\nimport re\n>>>>>>> REPLACE", EditDoubt.MALFORMED),
        (block("import os", "import re\n=======\nimport os"), EditDoubt.MALFORMED),
        (f"```\n{RENAME}", EditDoubt.MALFORMED),
        (RENAME + "It is now:\n" + "x" * 500, EditDoubt.REMARKS),
    ],
)
def test_a_doubt_spoils_the_answer(answer: str, reason: EditDoubt) -> None:
    assert doubt(answer) == reason


PATCH = "@@ -4,2 +4,2 @@\n def one():\n-    return 1\n+    return 3\n"


@pytest.mark.parametrize(
    "answer",
    [
        "   " + block("    return 1", "    return 3").replace("\n", "\n   "),
        "> " + block("    return 1", "    return 3").replace("\n", "\n> "),
        f"--- a/x.py\n+++ b/x.py\n{PATCH}",
        f"*** Begin Patch\n*** Update File: x.py\n{PATCH}*** End Patch",
        "<search>\n    return 1\n</search>\n<replace>\n    return 3\n</replace>",
    ],
)
def test_edits_in_a_form_of_the_models_own_are_a_doubt(answer: str) -> None:
    reader = read(answer, DOCUMENT * 9)
    assert reader.end() is None
    assert reader.begun
    assert reader.doubt is EditDoubt.MALFORMED


@pytest.mark.parametrize(
    "replace",
    [
        "+def one():\n+    return 3",
        "4\tdef one():\n5\t    return 3",
        "  4| def one():\n  5|     return 3",
        "```python\ndef one():\n    return 3\n```",
    ],
)
def test_new_lines_that_bear_what_no_old_line_does_are_a_doubt(replace: str) -> None:
    assert doubt(block("def one():\n    return 1", replace)) is EditDoubt.MALFORMED


def test_a_mark_that_an_old_line_has_is_allowed_in_a_new_one() -> None:
    steps = "1  heat\n2  cool\n+ salt\n"
    assert edited(block("2  cool", "2  cool down"), steps).document.startswith(
        "1  heat\n2  cool down"
    )
    assert edited(block("+ salt", "+ sugar"), steps).document.endswith("+ sugar\n")


def test_a_search_with_two_places_is_not_applied() -> None:
    assert doubt(block("same", "other"), "same\nother line\nsame") == EditDoubt.NOT_UNIQUE


@pytest.mark.parametrize(
    ("search", "replace"),
    [
        # Each search lacks one line of what the model had before its eyes.
        ("old", "before\nnew\nafter"),
        ("before\nold", "before\nnew\nafter"),
        ("old\nafter", "before\nnew\nafter"),
        ("before", "before\nold\nnew"),
        ("after", "old\nafter\nmore"),
    ],
)
def test_a_line_that_would_stand_twice_is_a_doubt(search: str, replace: str) -> None:
    assert doubt(block(search, replace), "first\nbefore\nold\nafter\nlast") in {
        EditDoubt.REPEATS_NEIGHBOR,
        EditDoubt.NOT_FOUND,
    }


def test_a_doubt_is_known_before_the_answer_ends() -> None:
    reader = read("<<<<<<< SEARCH\nnowhere\n=======\n")
    assert reader.doubt == EditDoubt.NOT_FOUND


def test_an_answer_without_blocks_begins_none() -> None:
    reader = read("The document:\n\nTitle\n=======\n\nText.")
    assert reader.end() is None
    assert not reader.begun
    assert reader.doubt is None


@given(st.integers(min_value=1, max_value=40))
def test_chunks_of_any_size_read_the_same(size: int) -> None:
    answer = f"Sure:\n```python\n{RENAME}{SECOND}```\nDone."
    assert read(answer, size=size).end() == edited(answer)


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), min_size=3, max_size=30)


@given(LINES, st.data())
def test_an_applied_block_changes_its_one_place_alone(
    lines: list[str], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    new = data.draw(st.lists(st.sampled_from(["a", "x", "y"]), min_size=1, max_size=4))
    answer = block("\n".join(lines[start:end]), "\n".join(new))
    found = read(answer, "\n".join(lines)).end()
    if found is not None:
        assert found.document == "\n".join((*lines[:start], *new, *lines[end:]))


LONG = "\n".join(f"line {number} of a document that is long enough" for number in range(80))


def asking(
    words: str, document: str = LONG, opening: str = "```python", closing: str = "```"
) -> str:
    return f"{words}\n\n{opening}\n{document}\n{closing}"


@pytest.mark.parametrize(
    "words",
    [
        "Rename foo to bar.",
        "Please fix the typo in line 3 and add a docstring.",
        "Can you update the version to 2.0?",
        "Here is my file.\n1. Remove the unused import\n2. Add type hints",
        "I'd like you to replace requests by httpx. Return the full file.",
        "Could you please make the title bold?",
        "Use f-strings instead of format.",
        "src/app.py - add logging:\n- change print to logger.info",
    ],
)
def test_a_wish_for_a_change_is_found(words: str) -> None:
    assert find_edit(asking(words)) == EditRequest(
        document=LONG, opening="```python", closing="```"
    )


@pytest.mark.parametrize(
    "words",
    [
        "",
        "Summarize this.",
        "Translate this to French and fix the typos.",
        "Explain what it does, then add comments.",
        "What would you change?",
        "Is this correct? Update it if not.",
        "Fix the bug, but only show me the changed function.",
        "Fix the bug. Do not repeat the whole file.",
        "Rename foo to bar and give me a diff.",
        "Write unit tests for this.",
        "Rewrite this from scratch.",
        "Make a haiku of it.",
        "Here is code to add numbers.",
        "Use it for an essay.",
        "Ersetze foo durch bar.",
        "Fix it. " + "x" * 2000,
    ],
)
def test_in_doubt_a_text_is_not_a_request_for_a_change(words: str) -> None:
    assert find_edit(asking(words)) is None


@pytest.mark.parametrize("unit", ["\n", "\n>", "word ", "a.b"])
def test_words_without_a_wish_are_read_once(unit: str) -> None:
    words = "Well" + unit * (1900 // len(unit)) + "so"
    began = time.process_time()
    assert [find_edit(asking(words)) for _ in range(20)] == [None] * 20
    assert time.process_time() - began < 1  # once a letter took up to nine seconds


def test_the_document_must_be_one_and_clearly_bordered() -> None:
    fix = "Fix the typo."
    tagged = asking(fix, opening='<document title="a">', closing="</document>")
    found = find_edit(tagged)
    assert found is not None
    assert found.opening == '<document title="a">'
    assert find_edit(f"{fix}\n\n{LONG}") is None
    assert find_edit(asking(fix, LONG[:1000])) is None
    assert find_edit(asking(fix) + "\n\n" + asking("", LONG + "2")) is None
    assert find_edit(asking(fix) + "\nNow:\n```\nsmall\n```") is not None
    assert find_edit(asking(fix, f"{LONG}\n```js\nx\n```\n{LONG}")) is None
    assert find_edit(asking(fix, f"{LONG}\n<<<<<<< SEARCH\n{LONG}")) is None
    assert find_edit(f"{fix}\n```\n{LONG}") is None
    assert find_edit(asking(fix).replace("\n", "\r\n")) is None
    assert find_edit(asking(fix, f"{LONG}\n```js\nx\n```\n{LONG}", "````md", "````")) is None
    nested = asking(fix, f"<source>a</source>\n{LONG}", "<document>", "</document>")
    assert find_edit(nested) is None


def test_a_document_stays_within_its_border() -> None:
    edit = EditRequest(document="a", opening="```md", closing="```")
    assert edit.bordered("b") == "```md\nb\n```"
    assert edit.bordered("b\n```js\nc\n```") is None
    tagged = EditRequest(document="a", opening="<file>", closing="</file>")
    assert tagged.bordered("```\nb\n```") == "<file>\n```\nb\n```\n</file>"
    assert tagged.bordered("b\n</file>") is None


@pytest.mark.parametrize("line", ["<<<<<<< HEAD", "=======", ">>>>>>> main", "<<<<<<<"])
def test_markers_are_seen(line: str) -> None:
    assert has_markers(f"a\n{line}\nb")
    assert not has_markers(f"a\n {line}\nb\n==========\n<<x")
