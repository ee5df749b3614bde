"""Turn a sentence-transformers model into an encoder folder. Needs the extra ``export``."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pkgutil
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np

from headstart.embeddings.encoder import (
    FORMAT,
    GRAPH_FILE,
    TOKENIZER_FILE,
    ModelCard,
    OnnxEncoder,
    Pooling,
    Precision,
    sha256_file,
    silence_runtime,
    write_card,
)
from headstart.embeddings.sketch import make_table, mix_words
from headstart.errors import ConfigError, MissingExtra
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from headstart.interfaces import Encoder

log = logging.getLogger(__name__)

MINIMUM_COSINE = 0.99

PROMPTS = msgspec.toml.decode(
    pkgutil.get_data(__name__, "export_prompts.toml") or b"", type=dict[str, tuple[str, ...]]
)["prompts"]
"""Short and long prompts. They must never change."""


class Fidelity(Frozen):
    """The cosines between the vectors of two encoders for the same prompts."""

    mean: float
    minimum: float


def encode_prompts(encoder: Encoder) -> NDArray[np.float32]:
    """Return the sentence vectors of ``PROMPTS``, one row each."""
    return np.stack([encoder.encode(prompt).sentence for prompt in PROMPTS])


def measure_fidelity(vectors: NDArray[np.float32], reference: NDArray[np.float32]) -> Fidelity:
    """Compare rows of length 1, pair by pair."""
    cosines = np.einsum("ij,ij->i", vectors, reference)
    return Fidelity(mean=float(cosines.mean()), minimum=float(cosines.min()))


def require_fidelity(fidelity: Fidelity, what: str) -> None:
    """Raise ConfigError if the mean cosine is below 0.99 or is not a number."""
    if not fidelity.mean >= MINIMUM_COSINE:
        raise ConfigError(
            f"{what} keeps a mean cosine of only {fidelity.mean:.4f} to its fp32 original; "
            f"{MINIMUM_COSINE} is the least that is served. Try --precision high"
        )


BLOCK = 128
INT8_COMPUTE = 4
"""``accuracy_level`` 4: multiply in int8, without converting the weights back."""


def quantize_graph(source: Path, target: Path, precision: Precision) -> None:
    """Write the fp32 graph ``source`` to ``target`` at ``precision``.

    ``int8`` quantises weights and activations dynamically: a quarter of the size, half the time.
    ``high`` quantises only the weights, to 8 bits in blocks of 128, for models that lose too much
    with int8. Raises MissingExtra.
    """
    if precision == "fp32":
        target.write_bytes(source.read_bytes())
        return
    silence_runtime()
    try:
        if precision == "int8":
            _quantize_dynamic(source, target)
        else:
            _quantize_blocks(source, target)
    except ImportError as error:
        raise MissingExtra("export", f"{precision} quantisation") from error


def _quantize_dynamic(source: Path, target: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        target,
        op_types_to_quantize=["MatMul", "Attention", "Gather"],
        # With one scale per tensor, a few outlier channels cost 0.03 of cosine.
        per_channel=True,
        # 7 bits cannot saturate the 16-bit accumulators of CPUs without VNNI.
        reduce_range=True,
        weight_type=QuantType.QInt8,
        # Shape inference does not know the fused operators, so it cannot tell their type.
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )


def _quantize_blocks(source: Path, target: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(source), bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=INT8_COMPUTE
    )
    quantizer.process()
    onnx.save(quantizer.model.model, target)


LAYOUT = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
"""Modules of a model that our graph expresses: pooling and norm are ours, the rest is its own."""


class Exported(Frozen):
    """The result of an export."""

    folder: Path
    card: ModelCard
    fidelity: Fidelity


def export_model(
    model: str,
    output: Path,
    *,
    precision: Precision = "int8",
    prefix: str | None = None,
    pooling: Pooling | None = None,
    texts: Sequence[str] = (),
    report: Callable[[str], None] = log.info,
) -> Exported:
    """Export a hub model or a local folder to ``output``, which must be empty or not exist.

    ``pooling`` and ``prefix`` (a text before each prompt) are the model's own unless given. The
    table of sketches is made with ``texts``, by default with mixed words. ``report`` gets lines
    about its progress. Nothing is written if the mean cosine to the original is below 0.99.
    Downloads ``model`` unless it is a folder. Raises ConfigError and MissingExtra.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output} is there already and is not an empty folder")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "encoder"
        folder.mkdir()
        with _quiet_libraries():
            exported = _export(model, folder, precision, prefix, pooling)
        make_table(folder, texts or mix_words(folder), report=report)
        shutil.copytree(folder, output, dirs_exist_ok=True)
    return msgspec.structs.replace(exported, folder=output)


def _export(
    model: str, folder: Path, precision: Precision, prefix: str | None, pooling: Pooling | None
) -> Exported:
    original = _load_original(model)
    pooling = _set_pooling(original, pooling)
    if prefix is None:
        prefix = original.prompts.get(original.default_prompt_name or "", "")
    with tempfile.TemporaryDirectory() as temporary:
        fp32 = Path(temporary) / "fp32.onnx"
        _write_graph(original, fp32, pooling)
        quantize_graph(fp32, folder / GRAPH_FILE, precision)
    original.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER_FILE))
    card = ModelCard(
        format=FORMAT,
        name=Path(model).name,
        dimension=original.get_embedding_dimension(),
        max_tokens=_token_limit(original),
        pooling=pooling,
        prefix=prefix,
        precision=precision,
        unknown_token=original.tokenizer.unk_token,
        source=Path(model).name if Path(model).is_dir() else model,
        weights_sha256=_hash_weights(original),
        onnx_sha256=sha256_file(folder / GRAPH_FILE),
    )
    write_card(folder, card)
    fidelity = _compare(original, folder, prefix)
    require_fidelity(fidelity, f"{model} at {precision}")
    return Exported(folder=folder, card=card, fidelity=fidelity)


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Suppress warnings and log lines about the internals of the libraries."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _load_original(model: str) -> SentenceTransformer:
    try:
        import onnxscript  # noqa: F401 - torch.onnx needs it later
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtra("export", "exporting an encoder") from error
    try:
        original = SentenceTransformer(model, device="cpu").float().eval()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model} cannot be loaded as a sentence transformer: {error}") from error
    modules = [type(module).__name__ for module in original]
    if modules not in LAYOUT:
        raise ConfigError(f"{model} is made of {', '.join(modules)}; only {LAYOUT[1]} can be")
    if not original.tokenizer.is_fast:
        raise ConfigError(f"{model} has no fast tokenizer, so no tokenizer.json can be made of it")
    return original


def _set_pooling(original: SentenceTransformer, wanted: Pooling | None) -> Pooling:
    """Return the pooling of the graph, and set the same pooling in the original."""
    if wanted is not None:
        original[1] = type(original[1])(original.get_embedding_dimension(), wanted)
    pooling: Pooling = original[1].pooling_mode
    if pooling not in get_args(Pooling):
        raise ConfigError(f"the model pools by {pooling}; choose --pooling mean or cls")
    return pooling


def _write_graph(original: SentenceTransformer, target: Path, pooling: Pooling) -> None:
    """Trace transformer, pooling and norm for one prompt of any length without padding."""
    import onnx
    import torch

    class OnePrompt(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.transformer = original[0].auto_model

        def forward(self, input_ids: Any) -> tuple[Any, Any]:
            everything = torch.ones_like(input_ids)
            tokens = self.transformer(input_ids=input_ids, attention_mask=everything)[0]
            pooled = tokens[:, 0] if pooling == "cls" else tokens.mean(dim=1)
            return torch.nn.functional.normalize(pooled, dim=1), tokens

    example = original.tokenizer("an example", return_tensors="pt")["input_ids"]
    program = torch.onnx.export(
        OnePrompt().eval(),
        (example,),
        input_names=["input_ids"],
        output_names=["sentence", "tokens"],
        dynamic_shapes={"input_ids": {1: torch.export.Dim.DYNAMIC}},
        dynamo=True,
        verbose=False,
    )
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.initializer, *model.graph.value_info):
        # Stack traces with paths: the hash must not depend on them.
        part.ClearField("metadata_props")
    onnx.save(model, target)


def _token_limit(original: SentenceTransformer) -> int:
    """Return the model's own limit, or the size of its position table if that is smaller.

    A table with a padding row (as in RoBERTa) counts positions from the row after it.
    """
    stated: int = original.max_seq_length
    embeddings = getattr(original[0].auto_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    if table is None:
        return stated
    reserved = 0 if table.padding_idx is None else table.padding_idx + 1
    held: int = table.num_embeddings - reserved
    return min(stated, held)


def _hash_weights(original: SentenceTransformer) -> str:
    """Return the SHA-256 over names and fp32 values of all parameters, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(original.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _compare(original: SentenceTransformer, folder: Path, prefix: str) -> Fidelity:
    reference = original.encode(
        list(PROMPTS), prompt=prefix, normalize_embeddings=True, show_progress_bar=False
    )
    return measure_fidelity(encode_prompts(OnnxEncoder(folder)), reference)
