from __future__ import annotations

from collections import Counter

import pytest

from headstart.lab.simulator import Oracle, traffic

SHARES = {"repeat_share": 0.4, "reword_share": 0.2, "trap_share": 0.05}


def test_traffic_is_a_pure_function_of_its_arguments() -> None:
    assert list(traffic(3, 200, **SHARES)) == list(traffic(3, 200, **SHARES))
    assert list(traffic(3, 200, **SHARES)) != list(traffic(4, 200, **SHARES))


def test_the_shares_are_kept_while_the_catalogue_lasts() -> None:
    kinds = Counter(prompt.kind for prompt in traffic(1, 600, **SHARES))
    assert kinds["repeat"] / 600 == pytest.approx(0.40, abs=0.06)
    assert kinds["reword"] / 600 == pytest.approx(0.20, abs=0.06)
    assert kinds["trap"] / 600 == pytest.approx(0.05, abs=0.03)


def test_each_kind_is_what_it_says() -> None:
    texts: set[str] = set()
    classes: set[str] = set()
    for prompt in traffic(2, 800, **SHARES):
        match prompt.kind:
            case "repeat":
                assert prompt.text in texts
            case "reword":
                assert prompt.text not in texts
                assert prompt.class_id in classes
            case "trap":
                assert prompt.class_id not in classes
                assert prompt.class_id.split("/")[0] in classes
            case "new":
                assert prompt.class_id not in classes
        texts.add(prompt.text)
        classes.add(prompt.class_id)


def test_the_class_is_the_oracles() -> None:
    oracle = Oracle()
    for prompt in traffic(5, 300, **SHARES):
        assert prompt.class_id == oracle.truth(prompt.text).class_id


def test_long_traffic_never_runs_dry() -> None:
    prompts = list(traffic(0, 3000, 0.0, 0.0, 0.0))
    assert len(prompts) == 3000
    kinds = Counter(prompt.kind for prompt in prompts)
    assert kinds["new"] == 60 + 600
    assert kinds["repeat"] == 3000 - 660
