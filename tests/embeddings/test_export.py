"""The real exporter on tiny models with random weights; ``make test-export`` runs them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from headstart.cli.encoder import encoder as command
from headstart.embeddings.encoder import OnnxEncoder
from headstart.embeddings.export import PROMPTS, encode_prompts
from headstart.errors import ConfigError

torch = pytest.importorskip("torch", reason="needs the extra `export`")
pytest.importorskip("onnxscript", reason="needs the extra `export`")
transformers = pytest.importorskip("transformers", reason="needs the extra `export`")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra")

from headstart.embeddings.export import export_model  # noqa: E402 - after the skips

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and its exporter warn of themselves

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_encoder.py"
WORDS = sorted({word for prompt in PROMPTS for word in prompt.lower().split() if word.isalpha()})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(33, 127)), *WORDS]
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 200,
}


def tiny_transformer(kind: str) -> Any:
    """Return a model of that architecture with few, seeded, well spread weights."""
    torch.manual_seed(7)
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**SIZES, initializer_range=0.2))
    config = transformers.XLMRobertaConfig(**SIZES, initializer_range=0.2, pad_token_id=0)
    return transformers.XLMRobertaModel(config)


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., str]:
    """Save a tiny sentence transformer and return its folder."""

    def make(
        kind: str = "bert",
        pooling: str = "mean",
        *,
        outlier: float = 0.0,
        extra: Sequence[Any] = (),
        **options: Any,
    ) -> str:
        folder = tmp_path / "transformer"
        weights = tiny_transformer(kind)
        with torch.no_grad():  # int8 scales all activations by the largest
            for layer in weights.encoder.layer:
                layer.intermediate.dense.bias[0] += outlier
                layer.output.dense.weight[:, 0] = 0.0
        weights.save_pretrained(folder)
        vocabulary = tmp_path / "vocab.txt"
        vocabulary.write_text("\n".join(VOCABULARY))
        tokenizer = transformers.BertTokenizer(vocab=str(vocabulary), model_max_length=150)
        tokenizer.save_pretrained(folder)
        modules = sentence_transformers.sentence_transformer.modules
        transformer = modules.Transformer(str(folder))
        pool = modules.Pooling(transformer.get_embedding_dimension(), pooling)
        model = sentence_transformers.SentenceTransformer(
            modules=[transformer, pool, *extra], device="cpu", **options
        )
        saved = tmp_path / f"tiny-{kind}"
        model.save(str(saved))
        return str(saved)

    return make


def original_vectors(model: str, prompt: str = "") -> np.ndarray:
    original = sentence_transformers.SentenceTransformer(model, device="cpu")
    vectors: np.ndarray = original.encode(
        list(PROMPTS), prompt=prompt, normalize_embeddings=True, show_progress_bar=False
    )
    return vectors


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_fp32_export_equals_the_original(
    make_model: Callable[..., str], tmp_path: Path, kind: str, pooling: str
) -> None:
    model = make_model(kind, pooling)
    exported = export_model(model, tmp_path / "out", precision="fp32")
    assert exported.card.pooling == pooling
    assert exported.card.max_tokens == 150
    encoder = OnnxEncoder(exported.folder)
    np.testing.assert_allclose(encode_prompts(encoder), original_vectors(model), atol=1e-5)


@pytest.mark.parametrize(("precision", "least"), [("int8", 0.99), ("high", 0.999)])
def test_quantised_export_stays_faithful(
    make_model: Callable[..., str], tmp_path: Path, precision: Any, least: float
) -> None:
    model = make_model()
    exported = export_model(model, tmp_path / "out", precision=precision)
    assert exported.fidelity.mean >= least
    assert exported.card.precision == precision
    vectors = encode_prompts(OnnxEncoder(exported.folder))
    cosines = (vectors * original_vectors(model)).sum(axis=1)
    assert cosines.mean() == pytest.approx(exported.fidelity.mean, abs=1e-4)


def test_prefix_and_pooling_can_be_chosen(make_model: Callable[..., str], tmp_path: Path) -> None:
    exported = export_model(
        make_model(), tmp_path / "out", precision="fp32", prefix="query: ", pooling="cls"
    )
    assert exported.card.prefix == "query: "
    assert exported.card.pooling == "cls"
    assert exported.fidelity.minimum > 0.9999


def test_prefix_comes_from_the_model(make_model: Callable[..., str], tmp_path: Path) -> None:
    model = make_model(prompts={"query": "ask: "}, default_prompt_name="query")
    exported = export_model(model, tmp_path / "out", precision="fp32")
    assert exported.card.prefix == "ask: "
    vectors = encode_prompts(OnnxEncoder(exported.folder))
    np.testing.assert_allclose(vectors, original_vectors(model, "ask: "), atol=1e-5)


def test_exporting_twice_gives_the_same_namespace(
    make_model: Callable[..., str], tmp_path: Path
) -> None:
    model = make_model()
    cards = [export_model(model, tmp_path / name).card for name in ("one", "two")]
    assert cards[0] == cards[1]


def test_model_that_int8_ruins_is_refused_and_not_written(
    make_model: Callable[..., str], tmp_path: Path
) -> None:
    model = make_model(outlier=2000.0)
    with pytest.raises(ConfigError, match="--precision high"):
        export_model(model, tmp_path / "int8", precision="int8")
    assert not (tmp_path / "int8").exists()
    assert export_model(model, tmp_path / "fp32", precision="fp32").fidelity.mean >= 0.99


def test_model_with_a_dense_layer_is_refused(
    make_model: Callable[..., str], tmp_path: Path
) -> None:
    dense = sentence_transformers.sentence_transformer.modules.Dense(32, 16)
    with pytest.raises(ConfigError, match="Dense"):
        export_model(make_model(extra=[dense]), tmp_path / "out")


def test_pooling_that_the_graph_cannot_do_is_refused(
    make_model: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--pooling"):
        export_model(make_model(pooling="max"), tmp_path / "out")


def test_a_folder_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        export_model(str(tmp_path / "empty"), tmp_path / "out")


def test_command_reports_what_it_wrote(make_model: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["export", make_model(), "--output", str(out), "--json"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["namespace"] == OnnxEncoder(out).namespace
    assert report["cosine_mean"] >= 0.99


def test_graph_of_the_build_script_equals_the_transformer(tmp_path: Path) -> None:
    build = load_build_script()
    transformer = tiny_transformer("bert").eval()
    weights = {name: tensor.numpy() for name, tensor in transformer.state_dict().items()}
    config = msgspec.convert(transformer.config.to_dict(), build.BertConfig)
    graph = build.BertGraph(weights, config).build()
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    ids = np.array([[2, 9, 40, 41, 7, 3]])
    sentence, tokens = session.run(["sentence", "tokens"], {"input_ids": ids})
    with torch.no_grad():
        expected = transformer(torch.tensor(ids)).last_hidden_state.numpy()
    mean = expected[0].mean(axis=0)
    np.testing.assert_allclose(tokens, expected, atol=1e-5)
    np.testing.assert_allclose(sentence[0], mean / np.linalg.norm(mean), atol=1e-5)


def load_build_script() -> Any:
    spec = importlib.util.spec_from_file_location("build_encoder", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
