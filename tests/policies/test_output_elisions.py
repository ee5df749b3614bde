"""Lines that stand for lines left out of a block, and those that only look like them."""

from __future__ import annotations

import pytest

from headstart.policies.output.document_edits import EditDoubt, EditReader, leaves_out

STEPS = ["def run():", *(f"    step_{number}()" for number in range(9)), "    return 1"]
CHANGED = ["def run():", "    first()", "    second()", "    third()"]


def elided(*lines: str, kept: int = 3) -> bool:
    """Tell what is found where some steps went, others stayed, and these lines came."""
    return leaves_out(STEPS, [*CHANGED, *STEPS[-kept:], *lines, "    return 1"])


SAYING = [
    "# ... as before",
    "# rest of the function unchanged",
    "# (existing code here)",
    "# [unchanged]",
    "// Remaining steps stay the same",
    "{/* ... rest of the component ... */}",
    "pass  # ... existing code ...",
    "return x  // as before",
    "# <rest of code>",
    "# existing steps...",
    "// etc...",
    "<!-- ... -->",
    "[...]",
    "...",
    "\u2026",
    "etc.",
    "... (unchanged) ...",
    "...rest of the code",
    "*[rest of the section]*",
    "{{ existing }}",
    "The rest stays the same.",
    "/* snip */",
    "-- and so on",
    "'''...'''",
]


@pytest.mark.parametrize("line", SAYING)
def test_a_line_that_says_so_stands_for_others(line: str) -> None:
    assert elided(f"    {line}")
    assert elided(f"    {line}", kept=9), "even where nothing else went"


@pytest.mark.parametrize("line", ["# le reste est identique", "# 18 lines more", "[section 2]"])
def test_any_remark_does_where_many_lines_went_and_few_came(line: str) -> None:
    assert leaves_out(STEPS, [STEPS[0], "    first()", f"    {line}", "    return 1"])
    assert not elided(f"    {line}", kept=6)


@pytest.mark.parametrize(
    "line",
    [
        "...state,",
        "<Field {...rest} />",
        "async def run(self) -> None: ...",
        "shape: tuple[int, ...] = ()",
        "same = total(previous_price, tax)",
        "print('Loading...')",
        "# Steps are counted from one.",
        "second()  # of three",
        "- The rest of the bread is eaten on the next day, with butter and a little honey on it.",
        "",
    ],
)
def test_code_and_prose_are_no_elisions(line: str) -> None:
    assert not elided(f"    {line}")


def test_a_remark_of_the_search_is_not_new() -> None:
    search = ["def stub():", "    ...", "x = f(1)  # as before", *STEPS]
    assert not leaves_out(search, ["def stub(a):", "    ...", "x = f(2)  # as before"])
    assert leaves_out(search, ["def stub(a):", "    ...", "def other():", "    ..."])


@pytest.mark.parametrize("line", SAYING)
def test_a_document_is_not_written_with_such_a_line(line: str) -> None:
    reader = EditReader("\n".join(STEPS))
    search, replace = "\n".join(STEPS), "\n".join([*CHANGED, f"    {line}"])
    reader.feed(f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n")
    assert reader.end() is None
    assert reader.doubt is EditDoubt.ELIDED
