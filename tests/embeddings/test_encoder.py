from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from headstart.embeddings.encoder import (
    DEFAULT_MODEL,
    GRAPH_FILE,
    ModelCard,
    OnnxEncoder,
    read_card,
    sha256_file,
    write_card,
)
from headstart.embeddings.export import MINIMUM_COSINE, PROMPTS, encode_prompts, measure_fidelity
from headstart.errors import ConfigError, EncoderError

GOLDEN = Path(__file__).with_name("encoder_fp32.npz")
OFFLINE = """
import os, sys

def refuse(event, arguments):
    if event.startswith("socket."):
        os._exit(3)

sys.addaudithook(refuse)
from headstart.embeddings.encoder import OnnxEncoder
OnnxEncoder().encode("Does this need a network?")
"""
NATIVE = """
from headstart.embeddings.encoder import OnnxEncoder
OnnxEncoder().encode("Does the library report this machine?")
"""
LIGHT = """
import sys
import headstart.embeddings.encoder_worker
print(sorted({"numpy", "onnxruntime", "tokenizers"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def encoder() -> OnnxEncoder:
    return OnnxEncoder()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the default model that a test may damage."""
    return Path(shutil.copytree(DEFAULT_MODEL, tmp_path / "model"))


def change_card(folder: Path, **changes: object) -> ModelCard:
    card = msgspec.structs.replace(read_card(folder), **changes)
    write_card(folder, card)
    return card


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b)


def test_committed_model_keeps_fp32_fidelity(encoder: OnnxEncoder) -> None:
    golden = np.load(GOLDEN)["sentence"]
    fidelity = measure_fidelity(encode_prompts(encoder), golden)
    assert fidelity.mean >= MINIMUM_COSINE
    assert fidelity.minimum >= 0.97


def test_kernels_that_round_otherwise_are_off(encoder: OnnxEncoder) -> None:
    # They exist only for processors with SME, which the tests do not have.
    assert encoder._model is not None
    chosen = encoder._model.session.get_session_options()
    assert chosen.get_session_config_entry("mlas.disable_kleidiai") == "1"


def test_golden_vectors_belong_to_the_prompts(encoder: OnnxEncoder) -> None:
    golden = np.load(GOLDEN)["sentence"]
    nearest = (encode_prompts(encoder) @ golden.T).argmax(axis=1)
    assert nearest.tolist() == list(range(len(PROMPTS)))


@pytest.mark.parametrize("text", ["", " ", "hi", "naïve café", "Ω" * 40, "word " * 600])
def test_sentence_is_a_unit_vector(encoder: OnnxEncoder, text: str) -> None:
    sentence = encoder.encode(text).sentence
    assert sentence.shape == (encoder.dimension,)
    assert sentence.dtype == np.float32
    assert np.linalg.norm(sentence) == pytest.approx(1.0, abs=1e-5)


def test_rewording_is_nearer_than_another_question(encoder: OnnxEncoder) -> None:
    question = encoder.encode("How can I sign up for ChatGPT?").sentence
    reworded = encoder.encode("I want to sign up for ChatGPT").sentence
    other = encoder.encode("What is the weather in Lisbon?").sentence
    assert cosine(question, reworded) > 0.9
    assert cosine(question, other) < 0.3


def test_spans_locate_every_token_of_the_prompt(encoder: OnnxEncoder) -> None:
    text = "Don't cancel\tmy  résumé, Zoë!"
    encoding = encoder.encode(text)
    words = [text[start:end] for start, end in encoding.spans]
    assert words == ["Don", "'", "t", "cancel", "my", "résumé", ",", "Zoë", "!"]
    assert encoding.tokens.shape == (len(words), encoder.dimension)
    assert encoding.tokens.dtype == np.float32


def test_special_tokens_have_no_vector(encoder: OnnxEncoder) -> None:
    encoding = encoder.encode("")
    assert encoding.spans == ()
    assert encoding.tokens.shape == (0, encoder.dimension)


def test_same_prompt_gives_the_same_bits(encoder: OnnxEncoder) -> None:
    again = OnnxEncoder()
    for prompt in PROMPTS:
        assert np.array_equal(encoder.encode(prompt).sentence, again.encode(prompt).sentence)


def test_prompts_encoded_at_the_same_time_have_the_same_bits(encoder: OnnxEncoder) -> None:
    alone = [encoder.encode(prompt).sentence for prompt in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(encoder.encode, PROMPTS * 4))
    for place, encoding in enumerate(at_once):
        assert np.array_equal(encoding.sentence, alone[place % len(PROMPTS)])


def test_arrays_cannot_be_changed_by_whoever_shares_them(encoder: OnnxEncoder) -> None:
    encoding = encoder.encode("hands off")
    with pytest.raises(ValueError, match="read-only"):
        encoding.sentence[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        encoding.tokens[0, 0] = 1.0


def test_prompt_within_the_limit_is_complete(encoder: OnnxEncoder) -> None:
    encoding = encoder.encode("word " * 254)
    assert len(encoding.spans) == 254
    assert encoding.complete


def test_prompt_cut_by_tokens_is_not_complete(encoder: OnnxEncoder) -> None:
    encoding = encoder.encode("word " * 255)
    assert len(encoding.spans) == 254
    assert not encoding.complete
    assert not encoding.unknown_words


def test_prompt_cut_by_characters_is_not_complete(encoder: OnnxEncoder) -> None:
    encoding = encoder.encode("hi" + " " * 5000 + "there")
    assert encoding.spans == ((0, 2),)
    assert not encoding.complete


def test_prompt_with_an_unknown_word_is_not_complete(encoder: OnnxEncoder) -> None:
    smile, frown = encoder.encode("what does 🙂 mean"), encoder.encode("what does 🙃 mean")
    assert cosine(smile.sentence, frown.sentence) == pytest.approx(1.0, abs=1e-5)
    assert not smile.complete
    assert smile.unknown_words
    assert not frown.complete


@pytest.mark.parametrize(
    "text",
    ["मेरा बैलेंस कब है", "Где мой заказ", "ما هو رصيدي", "これはペンです", "what does привет mean"],
)
def test_prompt_whose_words_are_spelled_is_not_complete(encoder: OnnxEncoder, text: str) -> None:
    encoding = encoder.encode(text)
    assert not encoding.complete
    assert encoding.unknown_words


@pytest.mark.parametrize(
    "text", ["π and β", "π+β in Δx", "đơn hàng của tôi khi nào", "“café” — 5µm, 2²", "xkcd or dwts"]
)
def test_prompt_with_signs_and_accents_is_complete(encoder: OnnxEncoder, text: str) -> None:
    assert encoder.encode(text).complete


def test_lower_limit_cuts_earlier() -> None:
    encoding = OnnxEncoder(max_tokens=8).encode("one two three four five six seven")
    assert len(encoding.spans) == 6
    assert not encoding.complete


@pytest.mark.parametrize("limit", [0, -1, 257])
def test_limit_beyond_the_model_is_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.max_tokens"):
        OnnxEncoder(max_tokens=limit)


def test_text_that_cannot_be_encoded_raises_encoder_error(encoder: OnnxEncoder) -> None:
    with pytest.raises(EncoderError):
        encoder.encode("half a \ud800 pair")


def test_prefix_is_seen_by_the_model_but_has_no_tokens_or_spans(
    encoder: OnnxEncoder, folder: Path
) -> None:
    change_card(folder, prefix="query: ")
    prefixed = OnnxEncoder(folder).encode("open hours")
    plain = encoder.encode("query: open hours")
    assert prefixed.spans == ((0, 4), (5, 10))
    assert np.array_equal(prefixed.sentence, plain.sentence)
    assert np.array_equal(prefixed.tokens, plain.tokens[2:])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"pooling": "cls"},
        {"prefix": "query: "},
        {"precision": "high"},
        {"onnx_sha256": "0" * 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_namespace_changes_with_what_changes_vectors(
    folder: Path, changes: dict[str, object]
) -> None:
    before = read_card(folder).namespace
    assert change_card(folder, **changes).namespace != before


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no readable model\.json"):
        OnnxEncoder(tmp_path)


def test_card_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "model.json").write_text("not json")
    with pytest.raises(ConfigError, match="not an encoder card"):
        OnnxEncoder(folder)


def test_card_of_another_format_is_refused(folder: Path) -> None:
    change_card(folder, format=2)
    with pytest.raises(ConfigError, match="format 2"):
        OnnxEncoder(folder)


def test_graph_that_its_card_does_not_describe_is_refused(folder: Path) -> None:
    with (folder / "model.onnx").open("ab") as graph:
        graph.write(b"\0")
    with pytest.raises(ConfigError, match="not the file that its card describes"):
        OnnxEncoder(folder)


def test_graph_that_is_not_onnx_is_refused(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"not a graph")
    change_card(folder, onnx_sha256=sha256_file(folder / "model.onnx"))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        OnnxEncoder(folder)


@pytest.mark.parametrize("missing", ["model.onnx", "tokenizer.json"])
def test_folder_without_a_file_is_refused(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        OnnxEncoder(folder)


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def models_in_memory() -> int:
    # ``isinstance`` would wake lazy objects of other libraries.
    return sum(type(each) is ort.InferenceSession for each in gc.get_objects())


def test_encoders_of_one_model_share_it_in_memory(encoder: OnnxEncoder) -> None:
    first = OnnxEncoder()
    before = models_in_memory()
    second = OnnxEncoder()
    assert models_in_memory() == before
    text = "What do they share?"
    np.testing.assert_array_equal(first.encode(text).sentence, second.encode(text).sentence)


def test_a_model_that_was_replaced_in_its_folder_is_loaded(folder: Path) -> None:
    before = OnnxEncoder(folder).encode("hello there").sentence
    graph = onnx.load(folder / GRAPH_FILE)
    [last] = (node for node in graph.graph.node if "sentence" in node.output)
    last.output[:] = ["turned"]
    graph.graph.node.append(onnx.helper.make_node("Neg", ["turned"], ["sentence"]))
    onnx.save(graph, folder / GRAPH_FILE)
    change_card(folder, onnx_sha256=sha256_file(folder / GRAPH_FILE))
    after = OnnxEncoder(folder).encode("hello there").sentence
    np.testing.assert_array_equal(after, -before)


def test_constructing_and_encoding_open_no_socket() -> None:
    finished = run_python(OFFLINE)
    assert finished.returncode == 0, finished.stderr


def test_the_library_of_the_encoder_reports_nothing_about_the_machine(tmp_path: Path) -> None:
    # The hook above does not see native code. It first writes what it is going to send.
    environ = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    finished = subprocess.run(
        [sys.executable, "-c", NATIVE],
        env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    told = finished.stderr.splitlines()
    assert [line for line in told if "cpuinfo" not in line] == []  # on ARM64 it warns of that
    assert [*tmp_path.rglob("*")] == []


def test_importing_the_worker_loads_no_model_library() -> None:
    assert run_python(LIGHT).stdout.strip() == "[]"
