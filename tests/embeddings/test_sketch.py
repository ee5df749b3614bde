from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Metaspace

from headstart.embeddings.encoder import (
    DEFAULT_MODEL,
    TOKENIZER_FILE,
    OnnxEncoder,
    load_tokenizer,
    read_card,
    sha256_file,
    write_card,
)
from headstart.embeddings.export import PROMPTS
from headstart.embeddings.sketch import (
    CARD_FILE,
    TABLE_FILE,
    SketchCard,
    Sketcher,
    WordTokens,
    load_sketcher,
)
from headstart.errors import ConfigError
from scripts.build_sketch import NOTICE_FILE, SOURCES, TABLE_SHA256

LIGHT = """
import sys
from headstart.embeddings.sketch import load_sketcher
load_sketcher().sketch("Does this need the model?")
print(sorted({"onnxruntime", "faiss"} & set(sys.modules)))
"""
REWORDINGS = (
    ("How do I close my bank account?", "i want to close my account at the bank"),
    ("Where is my order?", "where is the order that I placed"),
    ("What is the weather in Paris today?", "tell me today's weather in Paris"),
    ("How tall is Mount Everest?", "what is the height of mount everest"),
    ("Translate good morning to French", "how do you say good morning in French"),
)


@pytest.fixture(scope="module")
def sketcher() -> Sketcher:
    found = load_sketcher()
    assert found is not None
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the default model that a test may damage."""
    return Path(shutil.copytree(DEFAULT_MODEL, tmp_path / "model"))


def test_a_sketch_has_length_one_and_cannot_be_changed(sketcher: Sketcher) -> None:
    for prompt in PROMPTS:
        sketch = sketcher.sketch(prompt)
        assert sketch.shape == (sketcher.dimension,)
        assert sketch.dtype == np.float32
        assert np.linalg.norm(sketch) == pytest.approx(1, abs=1e-5)
        with pytest.raises(ValueError, match="read-only"):
            sketch[0] = 1


def test_the_table_of_the_package_is_the_one_that_the_script_built() -> None:
    """Who trains a new table writes its digest into the script."""
    assert sha256_file(DEFAULT_MODEL / TABLE_FILE) == TABLE_SHA256
    card = msgspec.json.decode((DEFAULT_MODEL / CARD_FILE).read_bytes(), type=SketchCard)
    assert card.table_sha256 == TABLE_SHA256
    assert card.encoder == read_card(DEFAULT_MODEL).namespace
    notice = (DEFAULT_MODEL / NOTICE_FILE).read_text()
    assert all(f"{source.repository} ({source.licence})" in notice for source in SOURCES)


SIGNS = "abcXYZ019 .,;:!?'\"-_/\\`~{}()<>|@#$%^&*+=\n\t\r\x00\x7f[]é"
HARD = (
    "[CLS] x",
    "x[MASK]",
    "I'm sure that 3.14 a_b c-d doesn't",
    "a" * 64 + " b",
    "a" * 120 + " b",
    'see https://example.org/a/b?c=d#e, (then) "go"...\x0bon\x1cand on',
    "a" * 3000,
    "word " * 600,
    "",
    " ",
)


def test_words_that_are_remembered_have_the_tokens_of_the_tokenizer() -> None:
    limit = read_card(DEFAULT_MODEL).max_tokens
    tokenizer = load_tokenizer(DEFAULT_MODEL, limit)
    words = WordTokens.of(tokenizer, limit)
    assert words is not None
    random = Random(7)
    mixed = ["".join(random.choices(SIGNS, k=random.randint(1, 60))) for _ in range(3000)]
    vocabulary = list(tokenizer.get_vocab())
    plain = 0
    for text in [*PROMPTS, *HARD, *mixed, *vocabulary, *PROMPTS]:
        tokens = words.of_text(text)
        plain += tokens is not None
        if tokens is not None:
            assert tokens == tokenizer.encode(text, add_special_tokens=False).ids, text
    assert plain > len(vocabulary) / 2
    assert words.of_text("a bracket [ may begin a special token") is None
    assert words.of_text("a" * 65) is None  # very long words are not remembered


def test_only_a_tokenizer_that_goes_by_words_is_asked_word_by_word() -> None:
    limit = read_card(DEFAULT_MODEL).max_tokens
    path = str(DEFAULT_MODEL / TOKENIZER_FILE)
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_tokens(["new york"])
    assert WordTokens.of(tokenizer, limit) is None
    tokenizer = Tokenizer.from_file(path)
    tokenizer.pre_tokenizer = Metaspace()
    assert WordTokens.of(tokenizer, limit) is None


def test_equal_texts_have_equal_sketches(sketcher: Sketcher) -> None:
    other = load_sketcher(DEFAULT_MODEL)
    assert other is not None
    assert other.namespace == sketcher.namespace
    for prompt in PROMPTS:
        assert np.array_equal(sketcher.sketch(prompt), other.sketch(prompt))


def test_sketches_are_as_near_as_encodings(sketcher: Sketcher) -> None:
    encoder = OnnxEncoder()
    texts = [*PROMPTS, *(text for pair in REWORDINGS for text in pair)]
    encoded = np.stack([encoder.encode(text).sentence for text in texts])
    sketched = np.stack([sketcher.sketch(text) for text in texts])
    pairs = tuple(np.array(list(combinations(range(len(texts)), 2))).T)
    wanted, found = (encoded @ encoded.T)[pairs], (sketched @ sketched.T)[pairs]
    assert np.corrcoef(wanted, found)[0, 1] > 0.8
    for a, b in REWORDINGS:
        row = sketched @ sketcher.sketch(a)
        row[texts.index(a)] = -1
        assert texts[int(row.argmax())] == b


def test_threads_may_share_a_sketcher(sketcher: Sketcher) -> None:
    texts = [f"{prompt} {number}" for prompt in PROMPTS for number in range(40)]
    wanted = [sketcher.sketch(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(sketcher.sketch, texts))
    assert all(map(np.array_equal, wanted, found))


@pytest.mark.parametrize("text", ["", " \n\t", "🙂", "🙂🙃 🙂", "\x00"])
def test_a_text_without_a_known_token_has_no_direction(sketcher: Sketcher, text: str) -> None:
    assert not sketcher.sketch(text).any()
    assert sketcher.sketch_whole(text) is None


def test_the_end_of_a_very_long_text_is_left_out(sketcher: Sketcher) -> None:
    text = "the cat sat on the mat and " * 200_000
    assert np.array_equal(sketcher.sketch(text), sketcher.sketch(text[:2560]))
    assert sketcher.sketch_whole(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *PROMPTS,
        "Was kostet das Fahrrad?",
        "東京の天気はどうですか",
        "ما هي عاصمة فرنسا؟",
        "what does 🙂 mean",
        "hello " * 254,
        "hello " * 255,
        "a" * 2560,
        " " * 2560 + "and after the blanks",
    ],
    ids=lambda text: text[:20],
)
def test_only_what_the_encoder_sees_whole_has_a_whole_sketch(sketcher: Sketcher, text: str) -> None:
    whole = sketcher.sketch_whole(text)
    encoding = OnnxEncoder().encode(text)
    assert (whole is not None) == encoding.complete
    assert sketcher.is_too_long(text) == (not encoding.complete and not encoding.unknown_words)
    if whole is not None:
        assert np.array_equal(whole, sketcher.sketch(text))


def test_a_lower_limit_of_the_encoder_holds_for_sketches() -> None:
    short = load_sketcher(max_tokens=8)
    assert short is not None
    assert short.sketch_whole("one two three four five six") is not None
    assert short.sketch_whole("one two three four five six seven") is None
    with pytest.raises(ConfigError, match="max_tokens"):
        load_sketcher(max_tokens=257)


def test_sketching_loads_neither_the_model_nor_the_index() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_table_belongs_to_its_encoder(sketcher: Sketcher, folder: Path) -> None:
    assert sketcher.namespace.startswith(read_card(DEFAULT_MODEL).namespace + "|")
    write_card(folder, msgspec.structs.replace(read_card(folder), name="another"))
    with pytest.raises(ConfigError, match="another encoder"):
        load_sketcher(folder)


def test_a_folder_without_a_table_has_no_sketcher(folder: Path) -> None:
    (folder / CARD_FILE).unlink()
    assert load_sketcher(folder) is None


@pytest.mark.parametrize("damage", ["byte", "cut", "gone", "card"])
def test_a_damaged_table_is_refused(folder: Path, damage: str) -> None:
    table, card = folder / TABLE_FILE, folder / CARD_FILE
    content = table.read_bytes()
    if damage == "byte":
        table.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        table.write_bytes(content[:5000])
    elif damage == "gone":
        table.unlink()
    else:
        card.write_text("{}")
    with pytest.raises(ConfigError, match=r"encoder\.model"):
        load_sketcher(folder)
