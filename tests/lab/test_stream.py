"""Streams are played as the cache would do it: what is served, stored and learned."""

from __future__ import annotations

import msgspec

from headstart.decisions import Label, LabelSource, Verdict
from headstart.lab.rates import LabelledPrompt, Ordering, ordering_report, same_class, stream_report
from headstart.lab.stream import PreparedPrompt, ReplayRun, play
from support.angles import ByAngle, conversation, key, labelled, prepare


class Notebook:
    """Learns nothing, and remembers what it was told."""

    def __init__(self, rate: float = 0.5) -> None:
        self.labels: list[Label] = []
        self.rate = rate

    def apply(self, label: Label) -> None:
        self.labels.append(label)

    def audit_rate(self) -> float:
        return self.rate

    def repeat_rate(self, verdict: Verdict, entry: str) -> float:
        return self.rate if verdict.features and entry else 0.0


def played(
    rows: list[LabelledPrompt], policy: ByAngle, learner: Notebook | None = None, drawn: float = 0.0
) -> Ordering:
    run = ReplayRun(policy, learner, same_class, same_class, lambda: drawn)
    return ordering_report(play(rows, prepare, run), seed=None)


def prepare_with_sketch(text: str, task: str = "") -> PreparedPrompt[str]:
    prepared = prepare(text, task)
    return prepared._replace(sketch=prepared.vector)


def test_stream_hits_what_it_stored_and_stores_only_misses() -> None:
    report = played(
        [
            labelled("north", "n"),  # miss, stored
            labelled("northish", "n"),  # hit, right, not stored
            labelled("northeast", "e"),  # 20 degrees from northish, but that is not stored: miss
            labelled("northward", "e"),  # nearest is north: wrong
        ],
        ByAngle(),
    )
    assert (report.n, report.hits, report.wrong) == (4, 2, 1)


def test_the_candidate_is_the_first_that_no_guard_vetoes() -> None:
    report = played(
        [labelled("not north", "x"), labelled("northish", "n"), labelled("north", "n")],
        ByAngle(),
    )
    assert (report.hits, report.wrong) == (1, 0)
    assert report.refused == {"nothing-stored": 1, "negation": 1}


def test_below_the_candidate_no_other_is_asked() -> None:
    rows = [labelled("northeast", "e"), labelled("east", "e"), labelled("north", "n")]
    report = played(rows, ByAngle(minimum=0.0, threshold=0.95))
    assert report.hits == 0
    assert report.refused == {"threshold": 2, "nothing-stored": 1}


def test_stream_never_crosses_histories_nor_uses_what_it_cannot_compare() -> None:
    report = played(
        [
            labelled("north", "n", history="a"),
            labelled("north", "n", history="b"),
            labelled(None, "n"),
            labelled("endless", "n", history="a"),
        ],
        ByAngle(),
    )
    assert report.hits == 0
    assert report.refused == {"nothing-stored": 2, "not-comparable": 2}


def test_partition_grows_past_its_first_block() -> None:
    many = [labelled(f"northeast {number}", "e") for number in range(200)]
    policy = ByAngle(minimum=0.9, threshold=1.1)
    assert played([*many, labelled("north", "n")], policy).refused["threshold"] == 200


def test_every_judged_miss_is_a_label() -> None:
    notes = Notebook()
    rows = [
        labelled("not north", "x"),  # nothing to compare with: no label
        labelled("north", "n"),  # vetoed
        labelled("northeast", "n"),  # not similar enough to the unvetoed one
    ]
    played(rows, ByAngle(minimum=0.5), notes)
    assert notes.labels == [
        Label(
            id="1", entry="0", domain="", source=LabelSource.MISS, same=False, at=1.0,
            similarity=notes.labels[0].similarity, version="test", features=b"north",
            veto="negation", stored=True,
        ),
        Label(
            id="2", entry="1", domain="", source=LabelSource.MISS, same=True, at=2.0,
            similarity=notes.labels[1].similarity, version="test", features=b"northeast",
            veto="threshold", stored=True,
        ),
    ]  # fmt: skip


def test_a_hit_is_a_label_only_when_its_audit_is_drawn() -> None:
    rows = [labelled("north", "n"), labelled("northish", "e")]
    audited, spared = Notebook(rate=0.5), Notebook(rate=0.5)
    assert played(rows, ByAngle(), audited, drawn=0.4).audits == 1
    assert played(rows, ByAngle(), spared, drawn=0.5).audits == 0
    assert spared.labels == []
    label = audited.labels[0]
    assert (label.source, label.same) == (LabelSource.AUDIT, False)
    assert (label.served, label.stored) == (True, False)


def test_categories_and_orderings_are_added_up() -> None:
    rows = [labelled("north", "n", category="c"), labelled("northish", "e", category="d")]
    one, other = played(rows, ByAngle()), played(rows[::-1], ByAngle())
    report = stream_report([one, other])
    assert (report.n, report.hits, report.wrong) == (4, 2, 2)
    assert report.refused == {"nothing-stored": 2}
    assert report.categories["c"].hits == report.categories["d"].hits == 1
    assert report.intervals["hit_rate"] == one.intervals["hit_rate"]


def test_exact_repeats_are_not_played_and_some_measure_the_judge() -> None:
    rows = [labelled("north", "n"), labelled("north", "n"), labelled("north", "e")]
    drawn, spared = Notebook(), Notebook()
    assert played(rows, ByAngle(), drawn, drawn=0.004).n == 1
    assert [(label.source, label.same) for label in drawn.labels] == [
        (LabelSource.NULL, True),
        (LabelSource.NULL, False),
    ]
    played(rows, ByAngle(), spared, drawn=0.005)
    assert spared.labels == []


def test_misses_are_asked_twice_if_the_judge_can_tell() -> None:
    rows = [labelled("north", "n"), labelled("northward", "n"), labelled("northish", "n")]
    for repeats, sources in (
        (True, [LabelSource.MISS, LabelSource.NULL] * 2),
        (False, [LabelSource.MISS, LabelSource.MISS]),
    ):
        notes = Notebook(rate=1.0)
        run = ReplayRun(
            ByAngle(), notes, same_class, same_class, lambda: 0.5, repeats=repeats, shadow=True
        )
        steps = list(play(rows, prepare, run))
        assert [label.source for label in notes.labels] == sources
        assert [step.audited for step in steps] == [False, repeats, repeats]


def test_a_shadow_serves_nothing_stores_all_and_labels_all() -> None:
    notes = Notebook(rate=0.0)
    rows = [labelled("north", "n"), labelled("northish", "n"), labelled("northeast", "n")]
    run = ReplayRun(ByAngle(), notes, same_class, same_class, lambda: 0.0, shadow=True)
    steps = list(play(rows, prepare, run))
    assert [step.served for step in steps] == [False, True, True]  # would have been
    assert steps[2].place == 1  # a hit would not have been stored
    assert [label.source for label in notes.labels] == [LabelSource.MISS] * 2
    assert all(label.stored and not label.served for label in notes.labels)


def test_where_nothing_is_served_questions_are_left_out_but_not_in_a_shadow() -> None:
    rows = [labelled("north", "n"), labelled("northish", "n"), labelled("northward", "n")]
    for shadow, refused in ((False, ["nothing-stored", "unqualified", "unqualified"]), (True, [])):
        policy, notes = ByAngle(), Notebook()
        policy.passing, policy.refusal = 0.25, "unqualified"
        run = ReplayRun(policy, notes, same_class, same_class, lambda: 0.25, shadow=shadow)
        steps = list(play(rows, prepare_with_sketch, run))
        assert [step.refusal for step in steps] == (refused or ["nothing-stored", "", ""])
        assert len(notes.labels) == (2 if shadow else 0)


def test_another_conversation_is_no_candidate_and_teaches_nothing() -> None:
    notes = Notebook()
    asked = [
        conversation("north", "east"),
        conversation("north", "northeast"),  # another conversation, nothing else stored
        conversation("northish", "northeast"),  # past the first to its own
    ]
    rows = [LabelledPrompt(prompt=each, label="n") for each in asked]
    report = played(rows, ByAngle(minimum=0.9), notes, drawn=1.0)
    assert report.refused == {"nothing-stored": 1, "history": 1}
    assert report.hits == 1
    assert notes.labels == []


def test_a_crowd_of_other_conversations_does_not_hide_an_equal_history() -> None:
    others = [conversation("north", f"other {number}") for number in range(20)]
    asked = [
        conversation("northish", "east"),
        *(msgspec.structs.replace(other, history=()) for other in others),  # equal to none
        conversation("north", "east"),
    ]
    rows = [LabelledPrompt(prompt=each, label=each.partition) for each in asked]
    report = played(rows, ByAngle())
    assert (report.hits, report.wrong) == (1, 0)


def test_an_order_and_a_question_meet_where_their_histories_are_equal() -> None:
    question = conversation("north", "east")
    order = key("northish", history=question.partition)
    rows = [LabelledPrompt(prompt=each, label="n") for each in (question, order)]
    assert played(rows, ByAngle()).hits == 1
