"""Tables of sketches for a tiny encoder with random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing

from headstart.embeddings.encoder import (
    FORMAT,
    GRAPH_FILE,
    TOKENIZER_FILE,
    ModelCard,
    OnnxEncoder,
    sha256_file,
    write_card,
)
from headstart.embeddings.sketch import TABLE_FILE, load_sketcher, make_table, mix_words
from headstart.errors import ConfigError
from scripts.build_encoder import BertConfig, BertGraph

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [a + b + c for a in "bdfklmnprst" for b in "aeiou" for c in ("", "n", "s", "rt")]
WIDTH = 48
STEPS = 60
LONGEST = 40


def tiny_weights(size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)

    def drawn(*shape: int, spread: float = 0.1) -> np.ndarray:
        return (random.standard_normal(shape) * spread).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        return {f"{name}.weight": ones, f"{name}.bias": zeros}

    def dense(name: str, rows: int, columns: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": drawn(rows, columns), f"{name}.bias": drawn(rows)}

    layer = "encoder.layer.0."
    return {
        "embeddings.word_embeddings.weight": drawn(size, WIDTH, spread=1.0),
        "embeddings.position_embeddings.weight": drawn(LONGEST, WIDTH, spread=0.1),
        "embeddings.token_type_embeddings.weight": drawn(2, WIDTH, spread=0.1),
        **norm("embeddings.LayerNorm"),
        **dense(f"{layer}attention.self.query", WIDTH, WIDTH),
        **dense(f"{layer}attention.self.key", WIDTH, WIDTH),
        **dense(f"{layer}attention.self.value", WIDTH, WIDTH),
        **dense(f"{layer}attention.output.dense", WIDTH, WIDTH),
        **norm(f"{layer}attention.output.LayerNorm"),
        **dense(f"{layer}intermediate.dense", 2 * WIDTH, WIDTH),
        **dense(f"{layer}output.dense", WIDTH, 2 * WIDTH),
        **norm(f"{layer}output.LayerNorm"),
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    names = [*SPECIAL, *WORDS]
    vocabulary = {name: id for id, name in enumerate(names)}
    config = BertConfig(
        hidden_size=WIDTH, num_attention_heads=4, num_hidden_layers=1, layer_norm_eps=1e-12
    )
    onnx.save(BertGraph(tiny_weights(len(names)), config).build(), folder / GRAPH_FILE)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    write_card(
        folder,
        ModelCard(
            format=FORMAT,
            name="tiny",
            dimension=WIDTH,
            max_tokens=LONGEST,
            pooling="mean",
            prefix="",
            precision="fp32",
            unknown_token="[UNK]",
            source="tests",
            weights_sha256="",
            onnx_sha256=sha256_file(folder / GRAPH_FILE),
        ),
    )
    return folder


def questions(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(3, 9))) for _ in range(count)]


def reworded(texts: list[str]) -> list[str]:
    """Each text with another first word."""
    return [f"{WORDS[place]} {text.partition(' ')[2]}" for place, text in enumerate(texts)]


def error(folder: Path, texts: list[str]) -> float:
    """How far the similarity of two reworded texts is from that of their encodings, on average."""
    sketcher, encoder = load_sketcher(folder), OnnxEncoder(folder)
    assert sketcher is not None
    pairs = list(zip(texts, reworded(texts), strict=True))
    found = [sketcher.sketch(a) @ sketcher.sketch(b) for a, b in pairs]
    wanted = [encoder.encode(a).sentence @ encoder.encode(b).sentence for a, b in pairs]
    return float(np.abs(np.subtract(found, wanted)).mean())


def no_report(line: str) -> None:
    """Take a line about the progress."""


@pytest.mark.parametrize("mixed", [False, True])
def test_training_brings_sketches_near_to_encodings(
    tiny: Path, tmp_path: Path, *, mixed: bool
) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "copy"))
    texts = mix_words(folder) if mixed else questions(600, seed=1)
    unseen = questions(100, seed=2)
    make_table(folder, texts, steps=0, report=no_report)
    before = error(folder, unseen)
    lines: list[str] = []
    card = make_table(folder, texts, steps=STEPS, report=lines.append)
    assert card.texts == len(texts)
    assert card.dimension == WIDTH
    assert any("error" in line for line in lines)
    assert error(folder, unseen) < before * 0.75


def test_mixed_words_are_words_of_the_model(tiny: Path) -> None:
    texts = mix_words(tiny)
    assert len(texts) == 4 * len(WORDS)
    assert {word for text in texts for word in text.split()} <= set(WORDS)
    assert texts == mix_words(tiny)


def test_the_same_texts_make_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    tables = []
    for name in ("one", "two"):
        folder = Path(shutil.copytree(tiny, tmp_path / name))
        make_table(folder, questions(100, seed=3), steps=STEPS, report=no_report)
        tables.append((folder / TABLE_FILE).read_bytes())
    assert tables[0] == tables[1]


def test_unknown_words_and_marks_have_no_part_in_a_sketch(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "copy"))
    make_table(folder, questions(100, seed=3), steps=STEPS, report=no_report)
    sketcher = load_sketcher(folder)
    assert sketcher is not None
    one, other = sketcher.sketch("ban xxx [SEP] dert"), sketcher.sketch("ban dert")
    assert np.allclose(one, other, atol=1e-6)


def test_too_few_texts_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="different texts, and got 2"):
        make_table(tiny, ["ban", "ban", " ", "dert"], steps=STEPS, report=no_report)
    assert load_sketcher(tiny) is None
