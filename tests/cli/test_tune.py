"""``headstart tune`` learns from logs, reports and draws the results, and saves them for serve."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from benchmarks.slots import slots_stream
from headstart.errors import ConfigError, HeadstartError
from headstart.lab.commands.tune import tune
from headstart.lab.rates import LabelledDataError
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return write(
        tmp_path / "stream.jsonl",
        [{"prompt": row.text, "class": row.label} for row in slots_stream()[:250]],
    )


def exchange(question: str, answer: str, at: float = 0.0) -> dict[str, Any]:
    return {
        "at": at,
        "scope": "s",
        "request": {"model": "m", "messages": [{"role": "user", "content": question}]},
        "response": {
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": answer},
                }
            ],
        },
    }


def run(path: Path, *arguments: str) -> str:
    out = ("--out", str(path.parent / "state.bin"))
    found = CliRunner().invoke(tune, [str(path), *out, *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    return found.stdout


def test_targets_are_compared_and_what_was_learned_is_kept(stream: Path, tmp_path: Path) -> None:
    page = tmp_path / "tune.html"
    report = json.loads(run(stream, "--max-error", "3%", "--html", str(page), "--json"))
    targets = [target["max_error"] for target in report["targets"]]
    assert targets == [0.005, 0.01, 0.02, 0.03, 0.05, 0.1]
    hits = [target["rates"]["hits"] for target in report["targets"]]
    assert hits == sorted(hits)
    assert report["chosen"]["hits"] == hits[3] > 0
    assert [curve["name"] for curve in report["roc"]] == ["similarity", "learned score"]
    domain = Domain.restore(ErrorLimit(), (tmp_path / "state.bin").read_bytes())
    assert domain.status().labels > 150
    drawn = page.read_text("utf-8")
    assert drawn.count("<svg") >= 3
    assert "<script" not in drawn
    assert "://" not in drawn


def test_the_end_is_a_recommendation_that_can_be_pasted(stream: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "state.bin"), "--html", str(tmp_path / "tune.html"))
    found = CliRunner().invoke(tune, [str(stream), *out], catch_exceptions=False)
    words, _, lines = found.stdout.rpartition("\n\n")
    assert tomllib.loads(lines)["cache"] == {
        "max_error": 0.02,
        "state": str(tmp_path / "state.bin"),
    }
    assert "Set max_error = 0.02: expect semantic hits for about" in words
    assert "late hits: those of the second half" in words
    assert "Recommendation" in (tmp_path / "tune.html").read_text("utf-8")
    # A log of a CI job sees that it goes on.
    assert "Target 0.5% (1 of 5): 250 …" in found.stderr
    assert "(1 of 5)" not in found.stdout


@pytest.mark.parametrize(
    "rows",
    [
        "prompt,class\nWhat is 1+1?,two\nWhat's 1+1?,two\n",
        '\ufeffQuestion,Answer,at\nWhat is 1+1?,It is 2.,1\n"What\'s\n1+1?",It is 2.,2\n',
        "a,b,same_answer\nWhat is 1+1?,What's 1+1?,true\nWhat is 2?,What is 3?,no\n",
    ],
    ids=["stream", "log", "pairs"],
)
def test_csv_is_read_too(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(rows, encoding="utf-8")
    assert json.loads(run(path, "--json"))["n"] == 2


def test_a_csv_without_the_columns_is_told_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("text,label\na,b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"log.csv: found text, label; a CSV needs the columns"):
        run(path)


def test_an_empty_file_is_told_both_formats(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("", encoding="utf-8")
    with pytest.raises(HeadstartError, match=r"file is empty: give JSON lines, or a CSV whose"):
        run(path)


def test_a_log_is_judged_by_its_answers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.jsonl",
        [
            exchange("what is the capital of Norway?", "Oslo", at=2),
            exchange("What is the capital of Norway?", "Oslo", at=1),
            exchange("What is the capital of Sweden?", "Stockholm", at=3),
            exchange("What is the capital of Norway?", "Oslo", at=4),
        ],
    )
    report = json.loads(run(path, "--json"))
    assert report["n"] == 3  # the last is an exact repeat
    assert report["chosen"]["hits"] == 1
    assert report["borderline"][0]["stored"] == "What is the capital of Norway?"
    assert report["borderline"][0]["same"] is True


def test_answers_that_no_cache_would_keep_are_skipped_and_told(tmp_path: Path) -> None:
    cut = exchange("Tell me a story", "Once")
    cut["response"]["choices"][0]["finish_reason"] = "length"
    failed = exchange("Hi", "")
    failed["response"] = {"error": {"message": "overloaded"}}
    path = write(tmp_path / "log.jsonl", [exchange("Hello", "Hi"), cut, failed])
    assert "not kept: length 1, no-whole-answer 1" in run(path)


def test_templates_are_proposed_and_can_be_tried(tmp_path: Path) -> None:
    document = "Fees are listed in the annex. Cards are sent by mail within two weeks. " * 4
    questions = [
        "Where are fees listed?", "Which page lists fees?", "How are cards sent?",
        "How long do cards take?", "Who sends cards?", "When do I get a card?",
        "Are fees listed?", "How do I get a card?",
    ]  # fmt: skip
    rows = [exchange(f"{document}\nQuestion: {question}\n", "Yes") for question in questions]
    path = write(tmp_path / "log.jsonl", rows)
    (template,) = json.loads(run(path, "--json"))["templates"]
    assert template["prompts"] == 8
    assert "[[route]]" in run(path)
    named = json.loads(run(path, "--query", template["pattern"], "--json"))
    asked = {pair["asked"] for pair in named["borderline"]}
    assert asked <= {part for question in questions for part in (question, question + "\n")}


def test_a_static_threshold_is_written_in_place(stream: Path, tmp_path: Path) -> None:
    settings = tmp_path / "headstart.toml"
    settings.write_text('[cache]  # ours\nmatch = "verified"\nttl_s = 60\n', encoding="utf-8")
    run(stream, "--write", str(settings), "--max-error", "50%")
    text = settings.read_text("utf-8")
    cache = tomllib.loads(text)["cache"]
    assert (cache["match"], cache["ttl_s"]) == ("static", 60)
    assert 0.8 <= cache["threshold"] < 1
    assert "# ours" in text
    assert not (tmp_path / "state.bin").exists()


def test_no_threshold_is_written_where_none_is_sure(stream: Path, tmp_path: Path) -> None:
    settings = tmp_path / "headstart.toml"
    settings.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="no static threshold"):
        run(stream, "--write", str(settings), "--max-error", "0.1%")
    assert settings.read_text("utf-8") == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--query", "("], "query"), (["--query", "x"], "query"), (["--max-error", "much"], "share")],
)
def test_bad_options_are_named(stream: Path, arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(tune, [str(stream), *arguments])
    assert found.exit_code == 2
    assert message in found.stderr


def test_several_logs_are_one_in_time_order(tmp_path: Path) -> None:
    later = write(tmp_path / "2.jsonl", [exchange("what is the capital of Norway?", "Oslo", at=2)])
    write(tmp_path / "1.jsonl", [exchange("What is the capital of Norway?", "Oslo", at=1)])
    report = json.loads(run(later, str(tmp_path / "1.jsonl"), "--json"))
    assert report["n"] == 2
    (pair,) = report["borderline"]
    assert pair["asked"] == "what is the capital of Norway?"


def test_a_cut_line_is_skipped_in_logs_and_named_in_labelled_files(
    stream: Path, tmp_path: Path
) -> None:
    whole = write(tmp_path / "log.jsonl", [exchange("Hi", "Hello")])
    whole.write_bytes(b'{"at": 0, "requ\n' + whole.read_bytes() + b'\n{"at": 1, "re')
    assert "1 prompts without exact repeats; not kept: cut-off-line 2" in run(whole)
    stream.write_bytes(stream.read_bytes()[:-4])
    with pytest.raises(LabelledDataError, match=r"line 250: .*truncated"):
        run(stream)


def test_a_log_that_is_nothing_but_a_cut_line_is_not_empty(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"at": 0, "requ')
    with pytest.raises(LabelledDataError, match=r"log\.jsonl: line 1: .*truncated"):
        run(log)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"messages": ' + "[" * 100_000, '{"a": "\xff"}'])
def test_a_line_that_cannot_be_decoded_is_named(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line.encode("latin-1"))
    with pytest.raises(LabelledDataError, match=r"log\.jsonl: line 1: "):
        run(log)


def test_each_line_is_read_in_its_dialect(tmp_path: Path) -> None:
    named = {**exchange("Hi", "Hello"), "dialect": "openai-chat"}
    assert json.loads(run(write(tmp_path / "log.jsonl", [named]), "--json"))["n"] == 1
    with pytest.raises(LabelledDataError, match="line 1: dialect: 'morse' is none of openai-chat"):
        run(write(tmp_path / "log.jsonl", [{**named, "dialect": "morse"}]))


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [exchange("Hi", "Hello"), {"request": {"model": "m"}}])
    with pytest.raises(LabelledDataError, match="line 2"):
        run(path)
    path = write(tmp_path / "fields.jsonl", [{"prompt": "Hi", "answer": "Hello"}])
    with pytest.raises(LabelledDataError, match=r"line 1: found .* or messages"):
        run(path)
    path = write(tmp_path / "bad.jsonl", [{"request": {"model": "m"}, "response": {}}])
    with pytest.raises(LabelledDataError, match=r"bad\.jsonl: line 1: request"):
        run(path)
    several = r"bad\.jsonl and .*log\.jsonl, counted .* line 3"
    with pytest.raises(ConfigError, match=several):  # a ConfigError: the command exits with 2
        run(path, str(tmp_path / "log.jsonl"))
