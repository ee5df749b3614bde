from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart import compress
from headstart.compression.lossless import pad, strip_padding

READ = '{"path": "src/a.py"}'


def _listing(sign: str = "\u2192", first: int = 1, width: int = 6, count: int = 40) -> str:
    return "\n".join(
        f"{n:{width}}{sign}    total += rows[{n}]" for n in range(first, first + count)
    )


def _conversation(text: str) -> list[dict[str, Any]]:
    function = {"name": "read_file", "arguments": READ}
    call = {"id": "c1", "type": "function", "function": function}
    return [
        {"role": "user", "content": "Do not change a single character of it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]


@pytest.mark.parametrize("sign", ["\u2192", "\t", "|", "\u2502"])
@pytest.mark.parametrize("first", [1, 95, 99_990])
def test_the_blanks_before_line_numbers_go_and_come_back(sign: str, first: int) -> None:
    width = len(str(first + 39)) if sign == "|" else 6
    text = _listing(sign, first, width)
    short = strip_padding(text)
    assert short is not None
    assert short.text.startswith(f"{first}{sign}")
    assert pad(short.text, short.padding) == text


def test_a_file_that_is_read_keeps_all_else_in_every_mode() -> None:
    messages = _conversation(_listing() + "\n\n<note>It ends here.</note>")
    for mode in ("safe", "balanced", "aggressive"):
        done = compress(messages, model="gpt-4o", mode=mode)
        assert done.messages[2]["content"].startswith("1\u2192    total += rows[1]\n2\u2192")
        assert done.tokens_after < 0.95 * done.tokens_before
        assert done.lossless
        assert done.restore() == messages


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"{n}\u2192x = {n}" for n in range(1, 40)),
        "\n".join(f"{40 - n:6}\tx" for n in range(39)),
        _listing(count=4),
        _listing() + "\n" + "A line of prose.\n" * 40,
        _listing() + "\n7\u2192without its blanks",
    ],
)
def test_text_that_is_not_a_padded_listing_stays(text: str) -> None:
    assert strip_padding(text) is None


ROWS = st.lists(st.text(alphabet="a 1\t\u2192|\n", max_size=12), min_size=5, max_size=30)


@given(ROWS, st.integers(1, 1200), st.integers(2, 7), st.sampled_from(["\t", "\u2192", "|"]))
def test_removed_padding_always_comes_back(
    rows: list[str], first: int, width: int, sign: str
) -> None:
    text = "\n".join(f"{n:{width}}{sign}{row}" for n, row in enumerate(rows, first))
    short = strip_padding(text)
    if short is not None:
        assert pad(short.text, short.padding) == text
        assert strip_padding(short.text) is None


def test_a_table_of_a_database_in_a_file_keeps_its_blanks() -> None:
    head = " id | name\n----+------\n"
    rows = "\n".join(f" {n:2} | row {n} of the table" for n in range(1, 41))
    messages = _conversation(f"{head}{rows}\n(40 rows)")
    for mode in ("safe", "balanced", "aggressive"):
        assert compress(messages, mode=mode).messages == messages


@pytest.mark.parametrize(
    "row",
    ["{n:3}\tname {n}\topen", " {n:3} | name {n}", "{id:7}\tname {n}\topen", "{n:5} | name {n}"],
    ids=["narrow column", "psql -t", "ids with gaps", "psql -t, wide head"],
)
def test_rows_of_a_table_keep_the_blanks_before_their_ids(row: str) -> None:
    text = "\n".join(row.format(n=n, id=n * 7 + n % 3) for n in range(1, 120))
    assert strip_padding(text) is None
