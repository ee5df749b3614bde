"""Keys of a TOML file are set in place; a file that cannot be edited safely is refused."""

from __future__ import annotations

import tomllib

import pytest

from headstart.errors import ConfigError
from headstart.lab.commands.tune import set_keys

VALUES = {"match": '"static"', "threshold": "0.93"}


def test_comments_order_and_other_tables_stay() -> None:
    text = (
        "# ours\n[server]\nport = 1  # one\n\n[cache]  # hits\n# why\nthreshold = 0.9  # was fine\n"
        'guards = [\n  "number",  # and\n  "date",\n]\nttl_s = 60\n\n[encoder]\nthreshold = 1\n'
    )
    assert set_keys(text, "cache", VALUES, remove=("guards",)) == (
        '# ours\n[server]\nport = 1  # one\n\n[cache]  # hits\nmatch = "static"\n# why\n'
        "threshold = 0.93  # was fine\nttl_s = 60\n\n[encoder]\nthreshold = 1\n"
    )


@pytest.mark.parametrize("text", ["", "[server]\nport = 1\n", "a = 1"])
def test_a_missing_table_is_added(text: str) -> None:
    edited = tomllib.loads(set_keys(text, "cache", VALUES))
    assert edited == {**tomllib.loads(text), "cache": {"match": "static", "threshold": 0.93}}


def test_a_hash_in_a_value_is_no_comment() -> None:
    edited = set_keys('[cache]\nmatch = "a#b"\n', "cache", {"match": '"static"'})
    assert edited == '[cache]\nmatch = "static"\n'


@pytest.mark.parametrize("text", ["cache = { match = 'x' }\n", "cache.match = 'x'\n"])
def test_a_table_written_otherwise_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match=r"threshold = 0\.93"):
        set_keys(text, "cache", VALUES)


def test_text_that_is_not_toml_is_refused() -> None:
    with pytest.raises(ConfigError, match="not TOML"):
        set_keys("[cache", "cache", VALUES)
