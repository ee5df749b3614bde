"""Words and stems: what every guard reads. All examples are invented."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headstart.decisions import Encoding
from headstart.policies.guards import table
from headstart.policies.guards.facts import dates
from headstart.policies.guards.negation import negations, negations_differ
from headstart.policies.guards.table import GUARDS, code_parts, parse_prompt
from headstart.policies.guards.words import Parse, languages, spellings_differ, split_words, stem

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.settings import GuardName


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("C++ or C#?", ["c++", "or", "c#"]),
        ("Is .NET 8.0.1 out?", ["is", ".net", "8.0.1", "out"]),
        ("main.py, my_var.", ["main.py", "my_var"]),
        ("It\u2019s full-time", ["it's", "full", "time"]),
        ("$1,250.50 (5%)", ["$", "1,250.50", "5", "%"]),
        ("1,2 and .5", ["1", "2", "and", ".5"]),
        ("L'hôtel, c'est où ?", ["l'", "hôtel", "c'", "est", "où"]),
        ("Dov'è dell'acqua?", ["dov'", "è", "dell'", "acqua"]),
        ("Don't call O'Neill", ["don't", "call", "o'neill"]),
    ],
)
def test_names_versions_and_amounts_stay_whole(text: str, tokens: list[str]) -> None:
    assert [word.text for word in split_words(text)] == tokens


@pytest.mark.parametrize(
    ("contracted", "whole"),
    [
        ("I'm sure they're ours", "I am sure they are ours"),
        ("WE\u2019LL go", "We will go"),
        ("They'd like it", "They would like it"),
    ],
)
def test_a_contracted_verb_is_a_word(contracted: str, whole: str) -> None:
    assert [word.text for word in split_words(contracted)] == whole.lower().split()


@pytest.mark.parametrize(
    "forms",
    [
        ("cancel", "cancels", "cancelled", "cancelling"),
        ("create", "creates", "created", "creating"),
        ("call", "calls", "called", "calling"),
        ("apply", "applies", "applied", "applying"),
        ("match", "matches", "matched"),
        ("quick", "quickly"),
        ("buy", "bought", "buying"),
        ("class", "classes"),
        ("add", "adds", "added", "adding"),
        ("app", "apps"),
    ],
)
def test_forms_of_a_word_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("bus", "bush"), ("pass", "past"), ("sing", "s"), ("red", "r"), ("niger", "nigeria")],
)
def test_different_words_have_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


@pytest.mark.parametrize(
    "text",
    [
        "Wo ist der Bahnhof?",
        "Où est l'hôtel ?",
        "¿Dónde está el hotel?",
        "Dov'è l'albergo?",
        "Onde fica a estação?",
        "Waar is het station?",
        "Gdzie jest dworzec?",
        "Var är stationen?",
    ],
)
def test_function_words_show_another_language(text: str) -> None:
    assert languages(split_words(text))[1]


@pytest.mark.parametrize(
    "text",
    [
        "Where is the hotel?",
        "hotel",
        "Is Las Vegas far from Los Angeles?",
        "What is the war in Lo Manthang about?",
        "Set a timer for ten minutes",
    ],
)
def test_english_is_no_other_language(text: str) -> None:
    assert not languages(split_words(text))[1]


def least_s(run: Callable[[], object]) -> float:
    took = []
    for _ in range(3):
        began = time.process_time()
        run()
        took.append(time.process_time() - began)
    return min(took)


def test_long_code_is_read_in_linear_time() -> None:
    few, many = ("f(a, [b " * count + ")] = " * count for count in (300, 2400))
    assert least_s(lambda: code_parts(many)) < 30 * least_s(lambda: code_parts(few))


@pytest.mark.parametrize(
    ("read", "text"), [(negations, "no "), (dates, "3 march ")], ids=["negations", "dates"]
)
def test_long_lists_are_read_in_linear_time(read: Callable[..., object], text: str) -> None:
    few, many = split_words(text * 500), split_words(text * 4000)
    assert least_s(lambda: read(many)) < 30 * least_s(lambda: read(few))


def test_long_prompts_are_compared_in_linear_time() -> None:
    few, many = (
        Parse(stems=("red", "tea") * count, content=frozenset(), vectors=b"")
        for count in (1000, 8000)
    )
    assert least_s(lambda: negations_differ(many, many)) < 30 * least_s(
        lambda: negations_differ(few, few)
    )


def test_accents_of_long_prompts_are_compared_in_linear_time() -> None:
    """Once, each word was compared with each other: 86 ms for two prompts of 200 words."""

    def prompt(count: int, vowel: str) -> Parse:
        words = tuple(f"{vowel}{number}x" for number in range(count))
        return Parse(stems=words, content=frozenset(), vectors=b"")

    few, many = ((prompt(count, "é"), prompt(count, "o")) for count in (25, 400))
    assert least_s(lambda: spellings_differ(*many)) < 60 * least_s(lambda: spellings_differ(*few))


def parse(text: str) -> Parse:
    empty = np.empty((0, 4), np.float32)
    encoding = Encoding(sentence=np.ones(4, np.float32), tokens=empty, spans=(), complete=False)
    return parse_prompt(text, encoding)


@pytest.mark.parametrize(
    ("guard", "one", "other"),
    [
        ("sign", "Explain move(tree, root);", "Explain move(root, tree);"),
        ("sign", "What does print(9 // 4) show?", "What does print(9 / 4) show?"),
        ("sign", "Explain copy(rows[i])", "Explain copy(rows[j])"),
        ("sign", "What does names[2:] hold?", "What does names[:2] hold?"),
        ("sign", "Explain return Err(code);", "Explain return Ok(code);"),
        ("sign", "Explain let (width, height) = size;", "Explain let (height, width) = size;"),
        ("sign", "What does ls -l print?", "What does ls -a print?"),
        ("sign", "What does git reset --soft do?", "What does git reset --mixed do?"),
        ("connective", "Explain a == b and c == d", "Explain a == b or c == d"),
    ],
)
def test_other_code_is_another_question(guard: GuardName, one: str, other: str) -> None:
    assert GUARDS[guard](parse(one), parse(other))
    assert GUARDS[guard](parse(other), parse(one))


@pytest.mark.parametrize(
    ("guard", "one", "other"),
    [
        ("sign", "What does `move(tree, root)` do?", "Explain move(tree,root) please"),
        ("sign", "What does print('hi') do?", 'Explain print("hi")'),
        ("sign", "Solve x + 2 = 7 with steps", "Please solve x+2=7"),
        ("sign", "Where is x > 5?", "For which values is x is > 5?"),
        ("sign", "Can I return my item(s)?", "How can I return the item(s)?"),
        ("sign", "Explain for i in range(n) {", "Please explain for i in range(n) { to me"),
        ("connective", "Is x > 2 and y < 3?", "Is it true that y < 3 and x > 2?"),
    ],
)
def test_other_words_around_code_ask_the_same(guard: GuardName, one: str, other: str) -> None:
    assert not GUARDS[guard](parse(one), parse(other))
    assert not GUARDS[guard](parse(other), parse(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Onde mora o avô da Ana?", "Onde mora a avó da Ana?"),
        ("Mua bàn ở đâu", "Mua bạn ở đâu"),
        ("Bàn này giá bao nhiêu", "Ban này giá bao nhiêu"),
    ],
)
def test_other_accents_make_another_word(one: str, other: str) -> None:
    assert GUARDS["spelling"](parse(one), parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Where is the nearest café?", "Where is the nearest cafe?"),
        ("Buenos días", "Buenos dias"),
        ("Preço da revisão", "Preco da revisao"),
        ("How far is Bogotá?", "Tell me how far Bogota is"),
        ("Who is Renée Zoë?", "Tell me who Renee Zoe is"),
    ],
)
def test_accents_may_be_left_out(one: str, other: str) -> None:
    for guard in ("spelling", "name"):
        assert not GUARDS[guard](parse(one), parse(other))
        assert not GUARDS[guard](parse(other), parse(one))


def test_each_guard_vetoes_its_example_in_the_overview() -> None:
    lines = re.findall(r"^    ([a-z-]+) +(.+) / (.+)$", table.__doc__ or "", re.MULTILINE)
    assert sorted(name for name, *_ in lines) == sorted(GUARDS)
    for name, one, other in lines:
        guard, a, b = GUARDS[name], parse(one), parse(other)
        assert guard(a, b), name
        assert guard(b, a), name
