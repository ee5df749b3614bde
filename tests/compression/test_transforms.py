"""Which texts get which transforms, tested through the public function."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from headstart import compress
from headstart.compression.transforms import is_list

if TYPE_CHECKING:
    from headstart.compression.result import Compression
    from headstart.settings import CompressionMode

STORY = (
    "The first lock of the canal was built by the council in the spring. It is kept by the port"
    " authority and by the city. Ships of the northern line call there on Monday, and leave it on"
    " Friday. The old lighthouse stands on the cliff above the lock, next to the inn."
)
LINES = [json.dumps({"id": n, "price": 1.5, "url": "a/b", "text": STORY}) for n in range(9)]
ODD = "[" + ",\n".join(f'{{ "id" : {n}, "name" : "item {n}" }}' for n in range(30)) + "]"


def sent(text: str, mode: CompressionMode = "balanced") -> str:
    content: str = shortened(text, mode).messages[-1]["content"]
    return content


def shortened(text: str, mode: CompressionMode = "balanced") -> Compression:
    question = {"role": "user", "content": "Which lock of the canal was built by the council?"}
    return compress([question, {"role": "tool", "content": text}], mode=mode)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(LINES).replace("1.5", "1.50"),
        "\n".join(LINES).replace("/", "\\/"),
        "\n".join(LINES).replace("lock", "l\\u00F6ck"),
        "\n".join(LINES).replace("1.5", "1e5"),
        "\r\n".join(LINES),
        "\n\n".join(LINES),
        "\n".join(LINES).replace('"id"', '"columns"'),
    ],
    ids=["number", "slash", "escape", "exponent", "CRLF", "blank", "columns"],
)
@pytest.mark.parametrize("mode", ["balanced", "aggressive"])
def test_each_line_of_json_lines_stays_json(text: str, mode: CompressionMode) -> None:
    new = sent(text, mode)
    whole = json.loads(new)["rows"] if new.startswith('{"columns":[') else None
    rows = whole or [json.loads(line) for line in new.split("\n") if line.strip()]
    given = [json.loads(line) for line in text.split("\n") if line.strip()]
    assert rows == [list(item.values()) if whole else item for item in given]


@pytest.mark.parametrize(
    "text",
    [
        "Found 9 results:\n[" + ", ".join(LINES) + "]",
        "[" + ", ".join(LINES)[:-30],
        str([json.loads(line) for line in LINES]),
        "<rows>" + "".join(f"<row><id>{n}</id><t>{STORY}</t></row>" for n in range(30)) + "</rows>",
    ],
    ids=["after words", "cut off", "Python", "XML"],
)
def test_no_sentence_is_taken_from_data(text: str) -> None:
    assert sent(text * 2, "aggressive") == text * 2


def test_json_of_any_layout_is_a_table_at_once() -> None:
    done = shortened(ODD)
    assert done.spans[0].transforms == ("minify", "json")
    assert not done.lossless
    assert compress(done.messages, mode="balanced").messages == done.messages


def test_empty_cells_at_the_ends_of_lines_stay() -> None:
    table = "\n".join(f"Anna {n}\tBerlin\t\t\t\t" for n in range(60))
    assert sent(table) == table


UNENDING = (
    '{"a": "' + '{\\"id\\": \\"x\\"}, ',
    '"', "\\", '\\"', "'", " ", "\t", "\n", " \n", "-", "=", "<", "<a ", "<!--", "<p>", "&#", "7",
    "x", "{ ", '{"a', "[", "[{", ". ", '."', "```\n", "[… ", "<document>\n", "# ", "E ", "<3>",
    "status ", "word ", "level=", '\n"a', "2026-11-21 10:00:00 x\n",
)  # fmt: skip


@pytest.mark.parametrize("start", ["", "<html><p>", "import os\nx = 1\n"])
@pytest.mark.parametrize("unit", UNENDING)
def test_work_grows_with_the_text_and_not_with_its_square(unit: str, start: str) -> None:
    def spent(size: int) -> float:
        text = start + unit * (size // len(unit))
        words = f"{text}\n<document>\n{text}\n</document>\nWhich?"
        began = time.process_time()
        for message in ({"role": "user", "content": words}, {"role": "tool", "content": text}):
            compress([message], mode="aggressive", strip_comments=True)
        return time.process_time() - began

    # Four times as much would do, a square takes sixteen: half a minute, where it was found.
    assert spent(64_000) < max(2, 10 * spent(16_000))


@pytest.mark.parametrize(
    "end", ["\u3002", "\u0964", "\u06d4", "\u0589", "\u104b", "\u1362", "\u17d4"]
)
def test_sentences_end_with_the_stops_of_other_scripts(end: str) -> None:
    words = [f"\u0905\u0906 {n} \u0907\u0908" for n in range(20)]
    assert not is_list("\n".join(f"{each}{end}" for each in words))
    assert is_list("\n".join(words))


@pytest.mark.parametrize(
    ("begin", "between", "end"),
    [
        ("", "\t", ""),
        ('"', '","', '"'),
        ("| ", " | ", " |"),
        ("", " & ", " \\\\"),
        ("", ";", ""),
        ("Lock, ", ", ", ""),
        ("Lock; ", "; ", ""),
    ],
    ids=["TSV", "CSV", "Markdown", "LaTeX", "semicolons", "spaced commas", "spaced semicolons"],
)
def test_a_table_stays_whole_if_its_cells_are_sentences(begin: str, between: str, end: str) -> None:
    rows = [
        f"{begin}{between.join((f'Lock {n}', STORY, f'Built in {1700 + n}.'))}{end}"
        for n in range(40)
    ]
    text = "Found 40 locks.\n" + "\n".join(rows)
    for mode in ("balanced", "aggressive"):
        assert sent(text, mode) == text
    assert is_list(text)
    assert not is_list(
        "\n".join(f"{STORY} It was in {1700 + n}, and then, later." for n in range(9))
    )


@pytest.mark.parametrize("sign", [",", ";"])
def test_a_table_of_two_columns_stays_whole(sign: str) -> None:
    rows = [f'{n}{sign}"{STORY} It was in {1700 + n}."' for n in range(40)]
    text = "\n".join([f"id{sign}text", *rows])
    assert sent(text, "aggressive") == text


def test_indented_prose_is_no_table() -> None:
    text = "\n\n".join(f"\t{STORY} It was in {1700 + n}; we saw it; later." for n in range(40))
    assert not is_list(text)
    assert len(sent(text, "aggressive")) < len(text)


def test_a_report_in_xml_with_sentences_in_its_attributes_stays_whole() -> None:
    errors = "".join(f'  <error id="e{n}" msg="{STORY} {STORY}"/>\n' for n in range(6))
    report = f'<?xml version="1.0"?>\n<results>\n{errors}</results>\n'
    for mode in ("balanced", "aggressive"):
        assert sent(report, mode) == report
