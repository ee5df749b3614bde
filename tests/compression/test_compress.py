from __future__ import annotations

import copy
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from openai._models import construct_type
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from headstart import Compression, ConfigError, compress
from headstart.compression.compress import Profile
from headstart.types import Memo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.settings import CompressionMode

Message = dict[str, Any]

ROWS = [{"flight": f"HAT{n}", "price": n * 1.5, "cabin": "economy"} for n in range(20)]
TABLE = json.dumps(ROWS)
LOG = "\n".join(f"2026-03-01 10:00:{n:02d} INFO worker {n} served request {n}" for n in range(40))
PROSE = " ".join(
    f"The {n}th ship of the fleet was seen by {n} people in the bay." for n in range(99)
)
PAGE = "<html><body>" + "<p class='text'>A paragraph of the page.</p>" * 40 + "</body></html>"


def ask(question: str) -> Message:
    return {"role": "user", "content": question}


def call(name: str = "search", arguments: str = "{}", id: str = "c1") -> Message:
    function = {"name": name, "arguments": arguments}
    made = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(content: Any, id: str = "c1", **fields: Any) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": content, **fields}


def texts(done: Compression) -> list[Any]:
    return [message["content"] for message in done.messages]


def test_safe_writes_tool_json_as_a_table_and_gives_it_back() -> None:
    messages = [ask("Cheapest?"), call(), result(TABLE)]
    done = compress(messages, model="gpt-4o")
    assert json.loads(texts(done)[2])["columns"] == ["flight", "price", "cabin"]
    assert done.tokens_after < 0.7 * done.tokens_before
    assert not done.before.estimated
    assert done.lossless
    assert done.restore() == messages


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Found 20 flights:\n", ""),
        ("Here they are.\n\n```json\n", "\n```\n"),
        ("", "\n20 rows in 3 ms"),
    ],
)
def test_json_within_a_result_becomes_a_table_and_its_words_stay(before: str, after: str) -> None:
    messages = [ask("Cheapest?"), call(), result(before + TABLE + after)]
    for mode in ("safe", "balanced"):
        done = compress(messages, mode=mode)
        sent = texts(done)[2]
        table = sent.removeprefix(before).removesuffix(after)
        assert json.loads(table)["columns"] == ["flight", "price", "cabin"]
        assert done.restore() == messages
        assert compress(done.messages, mode=mode).messages == done.messages


@pytest.mark.parametrize(
    ("before", "after"),
    [("> web@1.0.0 start\n\n", ""), ("Listening.\n", "\nStopped."), ("", "\ncommand terminated")],
)
def test_json_lines_beside_words_become_a_table(before: str, after: str) -> None:
    log = "\n".join(map(json.dumps, ROWS))
    messages = [ask("Cheapest?"), call(), result(before + log + after)]
    for mode in ("safe", "balanced"):
        done = compress(messages, mode=mode)
        table = texts(done)[2].removeprefix(before).removesuffix(after)
        assert len(json.loads(table)["rows"]) == len(ROWS)
        assert done.restore() == messages
        assert compress(done.messages, mode=mode).messages == done.messages
    cut = [ask("Cheapest?"), call(), result(before + log + "\n{" + after)]
    assert compress(cut, mode="balanced").messages == cut


def test_a_span_says_what_was_done_where() -> None:
    before, after = "Given:\n<documents>\n", "\n</documents>\nCheapest?"
    done = compress([ask(before + TABLE + after)])
    (span,) = done.spans
    assert (span.message, span.part, span.transforms) == (0, None, ("json",))
    assert texts(done)[0][: span.start] == before
    assert texts(done)[0][span.end :] == after
    assert (span.source_start, span.source_end) == (len(before), len(before + TABLE))
    assert done.restore()[0]["content"] == before + TABLE + after


def test_parts_are_shortened_in_place() -> None:
    parts = [{"type": "text", "text": "Result:"}, {"type": "text", "text": TABLE}]
    messages = [ask("Cheapest?"), call(), result(parts)]
    done = compress(messages)
    assert done.spans[0].part == 1
    assert done.restore() == messages


@pytest.mark.parametrize("mode", ["safe", "recoverable", "balanced", "aggressive"])
def test_marks_of_the_prompt_cache_stay_and_change_nothing(mode: CompressionMode) -> None:
    mark: Message = {"cache_control": {"type": "ephemeral"}}
    plain = compress([ask("Cheapest?"), call(), result(TABLE)], mode=mode)
    whole = compress([ask("Cheapest?"), call(), result(TABLE, **mark)], mode=mode)
    block = {"type": "text", "text": TABLE, **mark}
    parts = compress([ask("Cheapest?"), call(), result([block])], mode=mode)
    assert whole.messages[2] == plain.messages[2] | mark
    assert texts(parts)[2] == [block | {"text": texts(plain)[2]}]
    assert parts.restore()[2]["content"] == [block]


def test_off_changes_nothing() -> None:
    messages = [ask("Cheapest?"), call(), result(TABLE)]
    done = compress(messages, mode="off")
    assert done.messages == messages
    assert done.spans == ()
    assert done.tokens_before == done.tokens_after
    assert done.before.estimated


def test_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match="'fast' is none of off, safe, recoverable, balanced, aggressive"
    ):
        compress([], mode="fast")  # type: ignore[arg-type]


def test_the_input_is_never_changed_and_what_is_untouched_is_shared() -> None:
    messages = [ask("Cheapest?"), call(), result(TABLE)]
    before = copy.deepcopy(messages)
    done = compress(messages, mode="aggressive")
    assert messages == before
    assert done.messages[0] is messages[0]
    assert done.messages[2] is not messages[2]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": TABLE},
        {"role": "developer", "content": LOG},
        {"role": "user", "content": f"My table, my log:\n{TABLE}\n{LOG}"},
        {"role": "assistant", "content": TABLE, "reasoning_content": PROSE},
        result(TABLE, is_error=True),
        result([{"type": "text", "text": TABLE, "citations": []}]),
        result([{"type": "image_url", "image_url": {"url": "data:" + "A" * 999}}]),
        result("```\n" + "x = 1   \n\n\n\n" * 50 + "```"),
        result(None),
        result("short"),
    ],
    ids=lambda message: f"{message['role']} {str(message['content'])[:12]}",
)
def test_protected_messages_pass(message: Message) -> None:
    messages = [ask("Who saw the ships?"), call(), message]
    assert compress(messages, mode="aggressive").messages == messages


def test_files_pass_and_logs_among_them_do_not() -> None:
    for name, content, kept in (("a.json", TABLE, True), ("a.log", LOG, False)):
        messages = [ask("Why?"), call("read_file", f'{{"path": "{name}"}}'), result(content)]
        assert (compress(messages, mode="balanced").messages == messages) is kept


def test_legacy_function_results_are_known_by_their_name() -> None:
    file = {"role": "function", "name": "read_file", "content": TABLE}
    other = {"role": "function", "name": "search", "content": TABLE}
    assert len(compress([file, other]).spans) == 1


def test_balanced_points_to_an_equal_result() -> None:
    messages = [ask("Cheapest?"), call(), result(TABLE), call(id="c2"), result(TABLE, id="c2")]
    done = compress(messages, mode="balanced")
    assert done.spans[1].transforms == ("json", "duplicate")
    assert texts(done)[4].startswith("[… the same as the latest above that begins: {")
    assert not done.lossless
    assert done.restore()[:4] == messages[:4]
    assert done.restore()[4] == done.messages[4]


def test_balanced_folds_logs_unless_they_are_to_be_counted() -> None:
    for question, shorter in (("Is all well?", True), ("How many requests were served?", False)):
        done = compress([ask(question), call(), result(LOG)], mode="balanced")
        assert ("[… 37 lines omitted …]" in texts(done)[2]) is shorter


def test_repeated_lines_of_a_log_that_are_to_be_counted_stay() -> None:
    step = "2026-03-01 10:00:00 WARN db.pool: no free connection for job {}\n"
    log = "".join(map(step.format, "abcdef")) * 9
    for question, shorter in (("Is all well?", True), ("How often was none free?", False)):
        done = compress([ask(question), call(), result(log)], mode="balanced")
        assert ("the same as the latest above" in texts(done)[2]) is shorter


def test_a_patch_of_prose_stays_to_the_byte() -> None:
    context = "".join(f" {sentence}.   \n" for sentence in PROSE.split(". "))
    patch = f"--- a/bay.txt\n+++ b/bay.txt\n@@ -1,98 +1,99 @@\n{context}+One more ship came.\n"
    for text in (patch, f"The change:\n{patch}{patch}"):
        done = compress([ask("Which lines were added?"), call(), result(text)], mode="aggressive")
        assert texts(done)[2] == text


SETTINGS = """- name: backend
  image: registry.example/backend:2
  env:
  - name: HOST
    value: db.example.org
  resources:
    limits:
      memory: 200Mi
      cpu: 500m
"""
RECORDS = """Port: access
Operational Mode: static access
Trunking Encapsulation: negotiate
Native Mode VLAN: 1 (default)
Voice VLAN: none
Pruning Enabled: 2-1001
"""
CELLS = "Station  Open   \nHarbour  yes   \nOld Mill  no   \nCity Hall  yes   \nTower  yes   \n"


@pytest.mark.parametrize("block", [SETTINGS, RECORDS, CELLS], ids=["settings", "records", "cells"])
def test_nothing_is_left_out_within_a_list(block: str) -> None:
    text = "".join(f"{block}id {n}\n" + block for n in range(12))
    done = compress([ask("Is all well?"), call(), result(text)], mode="balanced")
    assert texts(done)[2] == text
    again = compress(
        [ask("Well?"), call(), result(text), call(id="c2"), result(text, "c2")], mode="balanced"
    )
    assert texts(again)[4].startswith("[… the same as the latest above that begins: ")


def test_balanced_reads_pages_unless_their_markup_is_asked_about() -> None:
    for question, shorter in (("What does it say?", True), ("Which tags are used?", False)):
        done = compress([ask(question), call(), result(PAGE)], mode="balanced")
        assert texts(done)[2].startswith("[HTML as text]\nA paragraph") is shorter


def test_broken_pages_are_sent_unchanged() -> None:
    messages = [ask("What does it say?"), call(), result(PAGE + "<!--")]
    assert compress(messages, mode="balanced").messages == messages


def test_a_page_stays_if_its_text_lacks_an_id_of_the_question() -> None:
    page = PAGE.replace("<p class", "<p data-order='A-1017' class", 1)
    messages = [ask("Where is order A-1017?"), call(), result(page)]
    assert compress(messages, mode="balanced").messages == messages
    assert compress([ask("Where is A-1018?"), *messages[1:]], mode="balanced").spans


def test_balanced_minifies_json_of_an_unusual_layout() -> None:
    odd = '{ "price" : 1.50 ,\n\n\n "a" : [ 1 , 2 ] }' + " " * 200
    done = compress([ask("?"), call(), result(odd)], mode="balanced")
    assert texts(done)[2] == '{"price":1.50,"a":[1,2]}'
    assert done.spans[0].transforms == ("minify",)


MODES: list[CompressionMode] = ["safe", "balanced", "aggressive", "recoverable"]
CATALOGUE = json.dumps(ROWS, indent=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "words",
    [
        "Translate it verbatim",
        "Show me the raw JSON.",
        "Print the result as it is.",
        "What is on line 31 of the result?",
        "How many lines does the answer have?",
        "Which value begins at offset 120?",
        "Is the indentation right?",
    ],
)
def test_what_is_copied_or_counted_by_lines_stays_as_it_is(
    mode: CompressionMode, words: str
) -> None:
    messages = [ask(words), call(), result(PAGE), call(), result(CATALOGUE)]
    assert compress(messages, mode=mode).messages == messages


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "system",
    [
        "Return the output of the tool verbatim.",
        "Answer with the JSON exactly as the tool wrote it.",
        "Pass each tool result on unchanged.",
    ],
)
def test_the_system_text_may_ask_for_results_as_they_came(
    mode: CompressionMode, system: str
) -> None:
    messages = [{"role": "system", "content": system}, ask("Go on"), call(), result(CATALOGUE)]
    assert compress(messages, mode=mode).messages == messages
    others = [{"role": "system", "content": "You sell flights."}, *messages[1:]]
    assert compress(others, mode=mode).spans


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "words",
    [
        "Change the price of HAT3 to 9 and return all of it.",
        "Can you add a column?",
        "Write the flights of the text below in the same form as this example.",
        "Question: the first flight?\nAnswer: HAT0\n\nQuestion: the last flight?",
    ],
)
def test_documents_to_change_and_examples_stay_as_they_are(
    mode: CompressionMode, words: str
) -> None:
    messages = [ask(f"<document>\n{CATALOGUE}\n</document>\n{words}")]
    assert compress(messages, mode=mode).messages == messages
    asked = [ask(f"<document>\n{CATALOGUE}\n</document>\nWhich flight is the cheapest?")]
    assert compress(asked, mode=mode).spans


def test_words_that_ask_for_a_change_are_not_about_the_results_of_tools() -> None:
    messages = [ask("Change my flight and add a bag."), call(), result(TABLE)]
    assert compress(messages).spans


def test_aggressive_selects_by_the_turns_own_question() -> None:
    answer = "The lighthouse keeper was Clara Wu until 1931. "
    text = PROSE + " " + answer + PROSE
    messages = [ask("Who was the lighthouse keeper?"), call(), result(text), ask("Thanks!")]
    done = compress(messages, mode="aggressive")
    assert done.spans[0].transforms[0] == "selection"
    assert answer.strip() in texts(done)[2]
    assert done.tokens_after < 0.75 * done.tokens_before
    assert "selection" not in str(compress(messages, mode="balanced").spans)


def test_aggressive_omits_nothing_from_a_list_or_for_what_is_not_there() -> None:
    names = ("opened the bridge to the port", "closed the lock of the canal", "moved the crane")
    log = "\n".join(f"{n:07x} The keeper of the harbour {names[n % 3]} in {n}" for n in range(90))
    asked = ask("Who was the keeper of the lock of the canal in the harbour?")
    assert not compress([asked, call(), result(log)], mode="aggressive").spans
    text = log.replace("\n", ".\n")
    assert compress([asked, call(), result(text)], mode="aggressive").spans
    for absent in (
        "Which keeper of the harbour did not close the lock?",
        "Who never moved the crane?",
    ):
        assert not compress([ask(absent), call(), result(text)], mode="aggressive").spans


def test_aggressive_selects_from_documents_beside_the_question() -> None:
    answer = "The lighthouse keeper was Clara Wu until 1931."
    question = "\n\nQuestion: who was the lighthouse keeper?"
    bodies = [PROSE[:1500], answer + " " + PROSE[1500:3000], PROSE[3000:]]
    documents = "\n".join(f"Document [{n}](Title: Bay) {body}" for n, body in enumerate(bodies))
    (text,) = texts(compress([ask(f"Answer briefly.\n\n{documents}{question}")], mode="aggressive"))
    assert text.startswith("Answer briefly.\n\n[… 25 sentences omitted …]\nDocument [1]")
    assert answer in text
    assert text.endswith(question)
    assert len(text) < 0.75 * len(documents)


def test_compressed_documents_are_still_no_words_of_the_user() -> None:
    documents = "\n".join(f"Document [{n}] {PROSE[n * 2000 : n * 2000 + 2000]}" for n in range(2))
    first = ask(f"Who saw ship 12?\n\n{documents}")
    messages = [first, first, call(), result(PROSE.replace("ship", "boat"))]
    done = compress(messages, mode="aggressive")
    assert compress(done.messages, mode="aggressive").messages == done.messages
    assert done.messages[1] != done.messages[0]


def test_aggressive_keeps_the_whole_for_whole_text_questions() -> None:
    done = compress(
        [ask("Summarize what the lighthouse keeper saw"), call(), result(PROSE)], mode="aggressive"
    )
    assert done.spans == ()


@pytest.mark.parametrize(
    "sentence", ["灯塔看守人是吴女士直到一九三一年。", "Der Leuchtturmwärter hieß bis 1931 Wu. "]
)
def test_other_languages_are_sent_whole(sentence: str) -> None:
    text = "".join(f"{n}. {sentence}" for n in range(200))
    messages = [ask("Who was the lighthouse keeper, Leuchtturmwärter?"), call(), result(text)]
    assert compress(messages, mode="aggressive").messages == messages


def test_questions_asked_in_several_messages_are_read_together() -> None:
    messages = [ask("Translate this."), ask("Now."), call(), result(PAGE)]
    assert compress(messages, mode="balanced").spans == ()
    messages = [ask("Translate this."), call(id="c0"), ask("What is it?"), call(), result(PAGE)]
    assert len(compress(messages, mode="balanced").spans) == 1


def test_a_text_that_does_not_pay_is_sent_unchanged() -> None:
    messages = [ask("Cheapest?"), call(), result(TABLE)]
    instant = Profile(prefill_tokens_per_s=1e9)
    assert compress(messages, profile=instant).messages == messages


def test_the_version_names_mode_and_profile() -> None:
    versions = {
        compress([], mode=mode, profile=profile).version
        for mode in ("safe", "balanced")
        for profile in (Profile(), Profile(version="2"))
    }
    assert len(versions) == 4
    assert compress([]).version in versions


def test_a_memo_changes_no_byte() -> None:
    memo = Memo()
    messages = [ask("Cheapest?"), call(), result(TABLE), call(), result(LOG), call(), result(PROSE)]
    for end in range(1, len(messages) + 1):
        with_memo = compress(messages[:end], mode="aggressive", memo=memo)
        assert with_memo.messages == compress(messages[:end], mode="aggressive").messages


def test_any_mapping_is_read() -> None:
    message: Mapping[str, Any] = MappingProxyType(ask("Hello"))
    assert compress([message]).messages == [ask("Hello")]


def answered(name: str) -> ChatCompletionMessage:
    """Return what the openai SDK makes of an answer that calls a tool."""
    body = {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": call(name)}]}
    return construct_type(type_=ChatCompletion, value=body).choices[0].message  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("name", ["search", "read_file"])
def test_messages_and_calls_of_the_openai_sdk_are_read_and_sent_as_it_would(name: str) -> None:
    message = answered(name)
    by_hand = {"role": "assistant", "content": None, "tool_calls": message.tool_calls}
    plain = compress([ask("Cheapest?"), call(name), result(TABLE)])
    assert bool(plain.spans) is (name == "search")
    for given in (message, by_hand):
        done = compress([ask("Cheapest?"), given, result(TABLE)], model="gpt-4o")
        assert done.messages == plain.messages
        assert done.restore() == [ask("Cheapest?"), call(name), result(TABLE)]
        assert done.tokens_before > done.tokens_after or name == "read_file"


@pytest.mark.parametrize("given", [None, "Hello", object()])
def test_a_value_that_is_not_a_message_is_refused_by_its_type(given: Any) -> None:
    with pytest.raises(TypeError, match=f"a {type(given).__name__} is not a chat message: give"):
        compress([ask("Cheapest?"), given])


def test_calls_count_as_text() -> None:
    done = compress([call("search", '{"q": "' + "harbour " * 50 + '"}')], model="gpt-4o")
    assert done.tokens_before > 50
    odd: list[Message] = [
        {"role": "assistant", "tool_calls": [{"id": "x"}]},
        {"role": "user", "content": [1]},
    ]
    assert compress(odd, model="gpt-4o").tokens_before == 0


@pytest.mark.parametrize(
    "text",
    [
        "id,note\n" + '0,"first   \n\n\n\nsecond"\n' * 20,
        "cat > motd <<EOT\nWelcome   \n\n\n\nto all\nEOT\n" * 20,
        "A line of a poem  \nand another one of the same  \n" * 20,
    ],
)
def test_white_space_that_may_count_stays(text: str) -> None:
    messages = [ask("What is it?"), call(), result(text)]
    assert text[:60] in texts(compress(messages, mode="balanced"))[2]


def test_without_pointers_each_message_stands_alone() -> None:
    once = [ask("Well?"), call(), result(TABLE), call(id="c2"), result(TABLE, "c2")]
    with_pointer = compress(once, mode="balanced")
    alone = compress(once, mode="balanced", pointers=False)
    assert "the same as the latest above" in texts(with_pointer)[4]
    assert texts(alone)[4] == texts(alone)[2]
    assert with_pointer.version != alone.version
