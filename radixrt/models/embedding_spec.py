"""`EmbeddingSpec`: how a model's final hidden states become embeddings, by the files of its folder.

sentence-transformers' `modules.json` lists the modules of an embedding model: Transformer, Pooling and, for vectors of
length 1, Normalize. A folder without `modules.json` has a plain decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixrt.errors import ModelLoadError, shown
from radixrt.messages.parts import Pooling
from radixrt.models.config_fields import read_json_object
from radixrt.models.sentence_transformers import Modules, Prompts, read_modules, read_settings

if TYPE_CHECKING:
    from radixrt.models.model_config import ModelSpec

MODES: dict[str, Pooling] = {"lasttoken": "last", "mean": "mean"}
"""Modes of sentence-transformers' Pooling module that are supported."""

EMBEDDING_MODULES = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
CAUSAL_RERANKER = ("Transformer", "LogitScore")
"""Modules of a model that scores pairs of texts by the logits of two tokens; see `relevance_spec`."""

CLASSIFIER = ("Transformer",)
"""Modules of a sequence classification model."""


@dataclass(frozen=True)
class EmbeddingSpec:
    """Attributes:
    pooling: the hidden states that are pooled.
    normalize: whether vectors are scaled to length 1, unless a request says otherwise.
    size: numbers of a vector, the model's hidden size; None where the configuration does not name it.
    generates: whether the model can also generate; False without an output head.
    is_declared: whether the folder's modules.json makes embeddings.
    prompts: texts before the texts, by purpose.
    """

    pooling: Pooling = "last"
    normalize: bool = True
    size: int | None = None
    generates: bool = True
    is_declared: bool = False
    prompts: Prompts = field(default_factory=Prompts)


def load_embedding_spec(folder: Path, model: ModelSpec) -> EmbeddingSpec:
    """Read modules.json, the Pooling module's config.json and the prompts; without them: the last token, normalized.

    Raises:
        ModelLoadError: a file is malformed, or asks for something that is not supported; names it.
    """
    modules = read_modules(folder)
    reranks = () if modules is None else CAUSAL_RERANKER if model.classifier is None else CLASSIFIER
    if modules is None or modules.kinds == reranks:
        return EmbeddingSpec(size=model.hidden_size, generates=model.has_head)
    if modules.kinds not in EMBEDDING_MODULES:
        known = "Transformer, Pooling and Normalize are, in this order; and Transformer and LogitScore"
        raise ModelLoadError(f"{modules.file}: the modules {', '.join(modules.kinds)} are not supported; {known}")
    _check_own_code(folder)
    return EmbeddingSpec(
        _pooling(modules), "Normalize" in modules.kinds, model.hidden_size, model.has_head, is_declared=True,
        prompts=read_settings(folder).prompts,
    )  # fmt: skip


def _check_own_code(folder: Path) -> None:
    """Refuse an embedding model with modeling code of its own, which is not run: most such code, gte-Qwen2's among it,
    makes attention bidirectional without a field in config.json that says so."""
    config = read_json_object(folder / "config.json")
    mapped = config.get("auto_map")
    code = mapped.get("AutoModel") if isinstance(mapped, dict) else None
    if code is not None and config.get("is_causal") is not True:
        raise ModelLoadError(
            f"config.json: auto_map names {shown(code)}, code of this embedding model that is not run, and whose"
            " attention may be bidirectional; if it is causal, write is_causal: true into config.json"
        )


def _pooling(modules: Modules) -> Pooling:
    file, config = modules.config("Pooling")
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in MODES:
        raise ModelLoadError(
            f"{file}: pooling by {' and '.join(modes) or 'no mode'} is not supported; lasttoken and mean_tokens are"
        )
    if modes[0] == "mean" and config.get("include_prompt", True) is not True:
        raise ModelLoadError(
            f"{file}: include_prompt {config['include_prompt']!r} is not supported for a mean; true is"
        )
    return MODES[modes[0]]


def _modes(config: dict[str, Any]) -> list[str]:
    """Return the modes that are on: of one field with a name or a list, or of a flag for each mode."""
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in (named if isinstance(named, list) else [named])]
    prefix = "pooling_mode_"
    on = [name.removeprefix(prefix) for name, value in config.items() if name.startswith(prefix) and value is True]
    return ["mean" if name == "mean_tokens" else name for name in on]
