"""Turn a sentence-transformers model into an encoder folder. Needs the extra ``export``."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from headstart.embeddings.encoder import OnnxEncoder
from headstart.embeddings.fidelity import (
    PROMPTS,
    Fidelity,
    encode_prompts,
    measure_fidelity,
    require_fidelity,
)
from headstart.embeddings.model_card import (
    FORMAT,
    GRAPH_FILE,
    TOKENIZER_FILE,
    ModelCard,
    Pooling,
    Precision,
    sha256_file,
    write_card,
)
from headstart.embeddings.quantize import quantize_graph
from headstart.errors import ConfigError, MissingExtra
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentence_transformers import SentenceTransformer

LAYOUT = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
"""Modules of a model that our graph expresses: pooling and norm are ours, the rest is its own."""


class Exported(Frozen):
    """What an export wrote."""

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
) -> Exported:
    """Export a hub model or a local folder to ``output``, which must not exist or be empty.

    ``pooling`` and ``prefix`` (text put before every prompt) come from the model unless given.
    Nothing is written when the result keeps under .99 mean cosine to the original. Downloads
    ``model`` unless it is a folder. Raises ConfigError and MissingExtra.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output} is there already and is not an empty folder")
    with _quiet_libraries():
        return _export(model, output, precision, prefix, pooling)


def _export(
    model: str, output: Path, precision: Precision, prefix: str | None, pooling: Pooling | None
) -> Exported:
    original = _load_original(model)
    pooling = _set_pooling(original, pooling)
    if prefix is None:
        prefix = original.prompts.get(original.default_prompt_name or "", "")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "encoder"
        folder.mkdir()
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
        shutil.copytree(folder, output, dirs_exist_ok=True)
    return Exported(folder=output, card=card, fidelity=fidelity)


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Hold back warnings and log lines about the libraries' own internals."""
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
        import onnxscript  # noqa: F401 - torch.onnx needs it; better to say so now
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
    """Return the pooling to build, after giving the original the same one."""
    if wanted is not None:
        original[1] = type(original[1])(original.get_embedding_dimension(), wanted)
    pooling: Pooling = original[1].pooling_mode
    if pooling not in get_args(Pooling):
        raise ConfigError(f"the model pools by {pooling}; choose --pooling mean or cls")
    return pooling


def _write_graph(original: SentenceTransformer, target: Path, pooling: Pooling) -> None:
    """Trace transformer, pooling and norm for one prompt of any length, without padding."""
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
        part.ClearField("metadata_props")  # stack traces: the sha must not depend on file paths
    onnx.save(model, target)


def _token_limit(original: SentenceTransformer) -> int:
    """Return the model's own limit, or what its position table holds if that is less.

    Tables with a padding row (RoBERTa and its kin) count positions from the row after it.
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
    """SHA-256 over names and fp32 values of all parameters, in order of name."""
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
