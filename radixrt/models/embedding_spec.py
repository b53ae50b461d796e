"""`EmbeddingSpec`: how a model's final hidden states become embeddings, by the files of its folder.

sentence-transformers' `modules.json` lists the modules of an embedding model: Transformer, Pooling and, for vectors of
length 1, Normalize. A folder without it is that of a plain decoder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError, shown
from radixrt.messages.parts import Pooling
from radixrt.models.model_config import ModelSpec, read_json_object

MODULES = "modules.json"
MODES: dict[str, Pooling] = {"lasttoken": "last", "mean": "mean"}
"""Modes of sentence-transformers' Pooling module that are supported."""


@dataclass(frozen=True)
class EmbeddingSpec:
    """Attributes:
    pooling: the hidden states that are pooled.
    normalize: whether vectors are scaled to length 1, unless a request says otherwise.
    size: numbers of a vector, the model's hidden size; None where the configuration does not name it.
    generates: whether the model can also generate; False without an output head.
    is_declared: whether the folder has a modules.json.
    """

    pooling: Pooling = "last"
    normalize: bool = True
    size: int | None = None
    generates: bool = True
    is_declared: bool = False


def load_embedding_spec(folder: Path, model: ModelSpec) -> EmbeddingSpec:
    """Read modules.json and the Pooling module's config.json; without them: the last token, normalized.

    Raises:
        ModelLoadError: a file is malformed, or asks for something that is not supported; names it.
    """
    file = folder / MODULES
    if not file.is_file():
        return EmbeddingSpec(size=model.hidden_size, generates=model.has_head)
    kinds = [(entry["type"].rpartition(".")[2], entry["path"]) for entry in _read_modules(file)]
    names = [kind for kind, _ in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelLoadError(
            f"{file}: the modules {', '.join(names)} are not supported; Transformer, Pooling and Normalize are, in this"
            " order"
        )
    if kinds[0][1] not in ("", "."):
        raise ModelLoadError(f"{file}: the Transformer must be in the folder itself, not in {shown(kinds[0][1])}")
    pooling = _pooling(folder / kinds[1][1] / "config.json")
    return EmbeddingSpec(pooling, "Normalize" in names, model.hidden_size, model.has_head, is_declared=True)


def _read_modules(file: Path) -> list[dict[str, str]]:
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read: {error}") from error
    if not isinstance(modules, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("type", "path"))
        for entry in modules
    ):
        raise ModelLoadError(f"{file} must be a list of modules with a type and a path")
    return modules


def _pooling(file: Path) -> Pooling:
    config = read_json_object(file)
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in MODES:
        raise ModelLoadError(
            f"{file}: pooling by {' and '.join(modes) or 'no mode'} is not supported; lasttoken and mean_tokens are"
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
