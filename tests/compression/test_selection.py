from __future__ import annotations

import random
import re

import pytest

from headstart.compression.passages import sentences
from headstart.compression.selection import focus, is_english, parse_query, select, stem
from headstart.compression.transforms import is_code

ANSWER = "The old harbour bridge was designed by Clara Wu in 1931."
QUESTION = "Who designed the harbour bridge?"
TOPICS = ("railway", "library", "orchard", "theatre", "mill", "school", "chapel", "market")


def sentence(rng: random.Random) -> str:
    return (
        f"The {rng.choice(TOPICS)} of the town was visited by {rng.randint(2, 900)} people, and it"
        f" is the oldest {rng.choice(TOPICS)} that is known to be in this part of the country."
    )


def documents(*extra: str) -> str:
    rng = random.Random(1)
    bodies = [[sentence(rng) for _ in range(6)] for _ in range(8)]
    bodies[5].insert(3, ANSWER)
    return "\n".join(
        f"Document [{number}](Title: {TOPICS[number - 1].title()}) {' '.join(body)}"
        for number, body in enumerate(bodies, 1)
    ) + "".join(f"\n{line}" for line in extra)


def test_the_answer_stays_and_the_rest_is_marked() -> None:
    text = documents()
    short = select(text, QUESTION)
    assert short is not None
    assert ANSWER in short
    assert len(short) < 0.75 * len(text)
    assert "Document [6](Title: School)" in short
    assert " sentences omitted …]" in short


def test_the_share_that_is_kept_can_be_chosen() -> None:
    text = documents()
    sizes = [len(select(text, QUESTION, kept) or "") for kept in (0.5, 0.2, 0.1)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < 0.35 * len(text)


def test_whole_lines_are_left_out_as_lines() -> None:
    rng = random.Random(2)
    lines = [sentence(rng) for _ in range(40)]
    lines[30] = ANSWER
    short = select("\n".join(lines), QUESTION)
    assert short is not None
    assert " lines omitted …]\n" in short
    assert ANSWER in short


def meeting() -> tuple[str, list[str]]:
    rng = random.Random(4)
    talk = [f"Speaker {n % 4}: {sentence(rng)}" for n in range(400)]
    told = range(180, 215)
    for number in told:
        # Of a talk about something, few sentences name it.
        talk[number] = f"Speaker {number % 4}: And then it was said that {number} of them would do."
    for number in (182, 190, 199, 211):
        talk[number] = f"Speaker {number % 4}: The harbour bridge was designed in year {number}."
    return "\n".join(talk), [talk[number] for number in told]


def test_the_stretch_of_a_long_talk_about_the_question_stays() -> None:
    text, told = meeting()
    short = select(text, QUESTION)
    assert short is not None
    assert all(line in short for line in told)


def test_a_single_text_never_becomes_shorter_than_a_third() -> None:
    text, _ = meeting()
    short = select(text, QUESTION)
    assert short is not None
    assert len(text) / 3 - 400 < len(short) < 0.7 * len(text)


def test_tagged_documents_keep_or_lose_their_tags_together() -> None:
    rng = random.Random(3)
    bodies = [" ".join(sentence(rng) for _ in range(6)) for _ in range(8)]
    bodies[2] += " " + ANSWER
    text = "\n".join(
        f'<document index="{n}">\n{body}\n</document>' for n, body in enumerate(bodies)
    )
    short = select(text, QUESTION, 0.1)
    assert short is not None
    assert short.count("<document") == short.count("</document>") < 8


@pytest.mark.parametrize("kept", ["```\nx = 1\n" + "y = 2\n" * 9 + "```", "港口的桥是谁设计的" * 9])
def test_code_and_other_scripts_within_stay(kept: str) -> None:
    short = select(documents(kept), QUESTION)
    assert short is not None
    assert kept in short


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (documents()[:3000], QUESTION),
        (documents(), "Why?"),
        (documents(), "Which volcano erupted near Naples?"),
        ("港口的桥是谁设计的 " * 400, QUESTION),
        ("Die alte Brücke am Hafen wurde von Clara Wu im Jahr 1931 entworfen. " * 80, QUESTION),
        ("4711 0815 1234 5678 | " * 300, QUESTION),
    ],
    ids=["short", "few terms", "not found", "Chinese", "German", "figures"],
)
def test_an_unclear_text_stays_whole(text: str, question: str) -> None:
    assert select(text, question) is None


def test_terms_far_apart_do_not_open_the_gate() -> None:
    terms = [f"term{letter}" for letter in "abcdefghijkl"]
    rng = random.Random(4)
    lines = [f"{sentence(rng)} This is about {term}." for term in terms for _ in range(4)]
    assert select("\n".join(lines), " ".join(terms)) is None


def test_english_is_told_by_its_function_words() -> None:
    assert is_english(documents())
    assert not is_english(
        "Il ponte del porto fu progettato da Clara Wu nel 1931 per la città. " * 9
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("One. Two! Three?", ["One. ", "Two! ", "Three?"]),
        ("Dr. Wu of St. Ives, e.g. J. Hale.", ["Dr. Wu of St. Ives, e.g. J. Hale."]),
        ("a\n\nb\n", ["a\n\n", "b\n"]),
        ('He said "Go." Then he left.', ['He said "Go." ', "Then he left."]),
        (
            "Use it:\n```\na. B\n```\nDone. Now.",
            ["Use it:\n", "```\na. B\n```\n", "Done. ", "Now."],
        ),
        ("~~~\nopen", ["~~~\nopen"]),
        ("pi is 3.14 now", ["pi is 3.14 now"]),
    ],
)
def test_sentences_are_the_text_in_pieces(text: str, pieces: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == pieces


def test_questions_become_stems_and_pairs() -> None:
    query = parse_query("Who designed the bridges of the harbour, the harbour bridges?")
    assert query.terms == ("design", "bridg", "harbour")
    assert query.pairs == ((0, 1), (1, 2), (2, 1))
    assert query.answer_shape() is not None
    assert parse_query("Where is it?").answer_shape() is None


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("Use only these documents.\n\nQuestion: who was it", " who was it"),
        ("**Question:** a?\nUser question: b", " b"),
        ("Answer briefly. Who was it? Thanks.", " Who was it?"),
        ("Tell me about the bridge", "Tell me about the bridge"),
    ],
)
def test_the_question_is_told_from_its_instructions(words: str, asked: str) -> None:
    assert focus(words) == asked


@pytest.mark.parametrize(
    ("word", "form"),
    [("cities", "city"), ("making", "make"), ("awards", "awarded"), ("nations", "nation")],
)
def test_forms_of_a_word_meet(word: str, form: str) -> None:
    pattern = parse_query(word).pattern()
    assert pattern.search(f"the {form} of")


def test_words_with_digits_are_not_stemmed() -> None:
    assert stem("b2s") == "b2s"


def test_a_fact_in_a_heading_is_kept() -> None:
    text = "".join(
        f"# The people of the village talked about the harvest of {1900 + year} for a long time,\n"
        "# and agreed on a plan for the barn that was near the river in the old valley.\n"
        "# Nobody wrote down the rest of it, because the lamp went out and it was late.\n\n"
        f"The plan of week {year} was good.\n\n"
        for year in range(60)
    )
    short = select(text, "What did they say about the harvest of 1931?")
    assert short is not None
    assert "harvest of 1931" in short
    assert "[… 0 " not in short


def test_a_mark_counts_lines_only_if_whole_lines_are_gone() -> None:
    text = "".join(
        f"The people of the village talked about the harvest of the year {1900 + year} for a long "
        "time and agreed on a plan for the old barn. "
        "Nobody wrote down the rest, because the lamp went out and it was late.\n\n"
        for year in range(60)
    )
    short = select(text, "What did they say about the harvest of 1931 and of the barn?")
    assert short is not None
    assert "barn. [… 1 sentence omitted …]" in short
    assert "barn. [… 1 line omitted …]" not in short


def test_comments_of_a_configuration_are_no_prose() -> None:
    text = "".join(
        "# The number of seconds that the server waits for the answer of a client. If it is zero,\n"
        "# the server waits for ever, and that is not what most of the users of it want.\n"
        f"timeout-{number} 30\n\n"
        for number in range(40)
    )
    assert is_code(text)
    assert not is_code(re.sub("^# |^timeout.*$", "", text, flags=re.MULTILINE))
