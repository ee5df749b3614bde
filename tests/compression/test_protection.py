from __future__ import annotations

import pytest

from headstart.compression.selection import (
    passes_results_on,
    shows_file,
    understand,
)
from headstart.compression.transforms import is_code


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", "{}"),
        ("Read", '{"x": 1}'),
        ("str_replace_based_edit_tool", "{}"),
        ("lookup", '{"file_path": "a.json"}'),
        ("bash", '{"command": "cd a && cat b.json"}'),
        ("run", '{"cmd": "git diff"}'),
        ("execute_command", "sed -n 1,9p x.py"),
        ("powershell", '{"command": "Get-Content Procfile"}'),
        ("powershell", '{"command": "Get-Content package.json"}'),
        ("shell", '{"command": ["cmd", "/c", "type go.mod"]}'),
        ("bash", '{"command": "jq . tsconfig.json"}'),
        ("bash", '{"command": "python3 tools/show.py data/rows.yaml"}'),
        ("bash", '{"command": "perl -ne print setup.cfg"}'),
        ("bash", '{"command": "xxd main.c"}'),
        ("bash", '{"command": "tail app.log; xxd .env"}'),
        ("python", '{"code": "print(open(\'orders.csv\').read())"}'),
        ("python", '{"code": "print(Path(\'LICENSE\').read_text())"}'),
        ("resource", '{"uri": "file:///srv/notes"}'),
        ("get_document", '{"name": "Tariff.JSON"}'),
        ("showSource", '{"target": "./bin/start"}'),
        ("fetch", '{"what": "C:\\\\Users\\\\me"}'),
        ("lookup", '{"target": "i18n/de.xcstrings"}'),
        ("lookup", '{"targets": ["a", "Dockerfile"]}'),
    ],
)
def test_the_call_tells_whether_a_result_may_be_a_file_to_edit(name: str, arguments: str) -> None:
    assert shows_file(name, arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search", '{"query": "head of state"}'),
        ("", ""),
        ("bash", '{"command": "ls -l"}'),
        ("bash", '{"command": "tail -n 100 /var/log/app.log"}'),
        ("read_file", '{"path": "app.log"}'),
        ("bash", '{"command": "head -n 50 build/server.out"}'),
        ("bash", '{"command": "tail /var/log/shop/app.error.log.1"}'),
        ("bash", '{"command": "curl -s https://api.example.com/v1/orders.json"}'),
        ("bash", '{"command": "python -u tools/train.py --rate 0.1"}'),
        ("bash", '{"command": "pytest -q tests/test_shop.py"}'),
        ("get_page", '{"url": "https://example.com/docs/index.html"}'),
        ("get_user", '{"email": "ann@example.com"}'),
        ("get_user_profile", '{"id": 7}'),
        ("get_credits", '{"id": 7}'),
        ("query", '{"sql": "SELECT o.id FROM public.orders o WHERE o.total > 1.5"}'),
        ("python", '{"code": "import json; print(json.dumps(rows))"}'),
        ("list_issues", '{"repo": "encode/httpx", "since": "2026-01-02"}'),
        ("search", '{"query": "flights after 5 p.m. today"}'),
        ("get_prices", '{"pair": "EUR/USD", "day": "01/02/2026"}'),
    ],
)
def test_other_results_and_logs_are_not_files_to_edit(name: str, arguments: str) -> None:
    assert not shows_file(name, arguments)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x\n\nprint(f(1))",
        "Look:\n```\nanything\n```",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b",
        "     1\timport os\n     2\tx = 1",
        "int main() {\n  return 0;\n}",
        '#!/bin/bash\nset -e\nif [ -z "$A" ]; then\n  echo "no"\n  exit 2\nfi\nsystemctl stop a',
        "module Main where\n\ntotal :: [Int] -> Int\ntotal xs = sum xs\nmain = run",
        "require 'json'\nclass A\n  attr_reader :b\n  def c\n    puts @b\n  end\nend",
        "IDENTIFICATION DIVISION.\nPROGRAM-ID. A.\n    MOVE 1 TO N.\n    DISPLAY N.",
        "parent(ada, ben).\nold(X) :- parent(X, Y), parent(Y, _).\nparent(ben, clara).",
        ".globl main\nmain:\n  mov eax, 1\n  addl $1, %ebx\n  ret",
    ],
)
def test_code_is_seen(text: str) -> None:
    assert is_code(text)


def test_prose_is_not_code() -> None:
    assert not is_code("The harbour was opened in 1901.\nIt closed; nobody knows why.\n\nThe end.")
    assert not is_code("")
    assert not is_code(
        "We met in Rome, Italy.\nThe module was shown: it works.\nSet the table, please."
    )


@pytest.mark.parametrize(
    ("question", "flags"),
    [
        ("Translate this into French.", "verbatim"),
        ("Give me the exact text of clause 4", "verbatim"),
        ("Put it into the ticket, do not change a single character.", "verbatim whole"),
        ("Keep it exactly as it is.", "verbatim"),
        ("Don't modify the table.", "verbatim whole"),
        ("Preserve all formatting", "verbatim"),
        ("Summarize the report", "whole counts"),
        ("List all of the airports", "whole counts"),
        ("How many requests failed?", "counts"),
        ("Which user logged in most?", "counts"),
        ("What is the average time?", "counts"),
        ("Give me the p95", "counts"),
        ("Show the events in order.", "counts"),
        ("Is everything in order?", ""),
        ("What happened between 10:02 and 10:04?", "counts"),
        ("What went on after about 10:05?", "counts"),
        ("What do the last 20 lines say?", "counts"),
        ("Wie viele Logins gab es?", "counts"),
        ("ユーザーは何人ですか", "counts"),
        ("What is on line 120?", "verbatim"),
        ("What is the most likely cause?", ""),
        ("What happened at 10:05?", ""),
        ("Who did not answer?", "whole"),
        ("Use only this text, and never guess. Who opened the harbour?", ""),
        ("Which links are on the page?", "markup"),
        ("Who opened the harbour?", ""),
    ],
)
def test_questions_tell_what_must_not_be_lost(question: str, flags: str) -> None:
    asked = understand(question)
    told = {name for name in ("verbatim", "whole", "counts", "markup") if getattr(asked, name)}
    assert told == set(flags.split())


def test_only_the_end_of_long_words_is_searched_for() -> None:
    asked = understand("x" * 5000 + " who?")
    assert len(asked.question) == 2000
    assert asked.words.strip().endswith("who?")


@pytest.mark.parametrize("run", ["\n", ", ", "json ", "the tool result of ", "- ", "1 "])
def test_long_words_are_read_in_linear_time(run: str) -> None:
    # A square of this length takes minutes.
    words = run * (200_000 // len(run))
    assert not understand(words[:50_000]).beside().verbatim
    assert not passes_results_on(words)


def test_two_messages_of_one_turn_show_examples_together() -> None:
    first, second = understand("Question: who?"), understand("Question: where?")
    assert not first.beside().verbatim
    assert first.then(second).beside().verbatim
    assert understand("Please replace the date.").then(second).beside().verbatim


def test_a_system_text_asks_for_copies_within_one_sentence() -> None:
    assert passes_results_on("Pass on what the tool says\nand print its output word for word.")
    assert not passes_results_on("Leave old code unchanged. The tool returns text.")
