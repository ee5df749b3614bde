from __future__ import annotations

from headstart.compression.passages import Passages, has_mark, same_as
from headstart.types import Memo

FIRST = "The harbour was opened in 1901 by the mayor. "
MIDDLE = "".join(
    f"Ship number {n} entered it on day {n} with a crew of {n} sailors. " for n in range(9)
)
LAST = "Nobody has counted them since the fire of 1950."


def passages(*texts: str) -> Passages:
    sent = Passages(Memo())
    for text in texts:
        sent.add(text)
    return sent


def test_a_pointer_names_the_units_that_it_replaces() -> None:
    assert same_as("x", 1, "line") == "[… 1 line, the same as the latest above that begins: x …]"
    assert same_as("x", 2, "line") == "[… 2 lines, the same as the latest above that begins: x …]"
    assert same_as("x") == "[… the same as the latest above that begins: x …]"


def test_a_passage_sent_before_becomes_a_pointer_to_its_beginning() -> None:
    short = passages("Intro. " + MIDDLE).shorten(FIRST + MIDDLE + LAST)
    mark = same_as("Ship number 0 entered it on day 0 with a crew of", 9, "sentence")
    assert short == f"{FIRST}{mark} {LAST}"


def test_a_passage_within_the_same_text_points_to_the_earlier_one() -> None:
    short = passages().shorten(MIDDLE + "\n" + FIRST + MIDDLE)
    assert short.startswith(MIDDLE)
    assert short.count("Ship number 3") == 1


def test_lines_are_counted_as_lines() -> None:
    log = "".join(f"worker {n} accepted a job of queue {n}\n" for n in range(12))
    short = passages(log).shorten("Now:\n" + log + "done")
    assert short == f"Now:\n{same_as('worker 0 accepted a job of queue 0', 12, 'line')}\ndone"


def test_the_count_of_lines_holds_empty_lines_and_lines_of_several_sentences() -> None:
    letter = "".join(f"Dear reader with number {n}. We write to you.\n\nYours.\n" for n in range(9))
    short = passages(letter).shorten("Again:\n" + letter + "End.")
    assert short == f"Again:\n{same_as('Dear reader with number 0.', 27, 'line')}\nEnd."


def test_lines_are_counted_where_the_pointer_leads() -> None:
    lines = [f"Ship number {n} came with a crew of {n} sailors." for n in range(12)]
    short = passages("\n\n".join(lines)).shorten("Again:\n" + "\n".join(lines))
    mark = same_as("Ship number 0 came with a crew of 0 sailors.", 23, "line")
    assert short == f"Again:\n{mark}"


def test_a_pointer_quotes_a_beginning_with_words() -> None:
    assert passages("---\n" + MIDDLE).point("---\n" + MIDDLE) is None


def test_short_passages_stay() -> None:
    assert passages(FIRST * 8).shorten(LAST + FIRST) == LAST + FIRST


def test_sentences_in_another_order_stay() -> None:
    pieces = MIDDLE.split("Ship")[1:]
    shuffled = "".join("Ship" + piece for piece in pieces[::-1])
    assert passages(MIDDLE).shorten(shuffled) == shuffled


def test_a_text_with_a_mark_is_not_a_target() -> None:
    marked = f"{FIRST}{same_as('Elsewhere', 4, 'line')} {LAST}"
    assert passages(marked).shorten("More. " + marked) == "More. " + marked


def test_the_whole_text_sent_before_becomes_one_pointer() -> None:
    assert passages(MIDDLE).point(MIDDLE) == same_as(
        "Ship number 0 entered it on day 0 with a crew of"
    )
    assert passages(MIDDLE).point(MIDDLE + LAST) is None
    assert passages(FIRST).point(FIRST) is None


def test_a_pointer_always_means_the_latest_that_begins_so() -> None:
    newer = MIDDLE.replace("sailors", "officers")
    sent = passages(MIDDLE, newer)
    assert sent.point(newer) == same_as("Ship number 0 entered it on day 0 with a crew of")
    older = sent.point(MIDDLE)
    assert older is not None
    assert "sailors" in older  # quotes on until it is told apart
    alike = "x" * 300
    assert passages(alike + "1", alike + "2").point(alike + "1") is None


def test_marked_texts_are_never_pointed_to() -> None:
    marked = MIDDLE + same_as("x")
    assert has_mark(marked)
    assert passages(marked).point(marked) is None


def test_lines_at_another_depth_are_not_the_same() -> None:
    lines = [f"setting_of_the_service_{n}: value number {n}\n" for n in range(9)]
    shallow = "".join("  " + line for line in lines)
    deep = "".join("    " + line for line in lines)
    assert passages(shallow).shorten("top:\n" + deep) == "top:\n" + deep
    pointer = same_as("setting_of_the_service_0: value number 0", 9, "line")
    assert passages(shallow).shorten("top:\n" + shallow) == f"top:\n{pointer}\n"


def test_empty_cells_at_a_lines_end_are_compared() -> None:
    lines = [f"The customer of row number {n}\tBerlin" for n in range(12)]
    wide = "\t\t\n".join(lines)
    assert passages("\n".join(lines)).shorten("More:\n" + wide) == "More:\n" + wide
    pointer = same_as("The customer of row number 0\tBerlin\t\t", 12, "line")
    assert passages(wide + "\t\t").shorten("More:\n" + wide + "\t\t") == "More:\n" + pointer


def test_rules_and_padding_are_cheaper_than_a_pointer() -> None:
    for line in ("-" * 300, "| " + " " * 300 + " |", "=" * 280):
        text = f"{line}\nMay went up\n{line}\nJune went down\n{line}"
        assert passages().shorten(text) == text
        assert passages(line).point(line) is None
