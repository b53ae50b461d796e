"""Files of sentence-transformers in a model's folder: modules.json, and config_sentence_transformers.json with prompts.

`EmbeddingSpec` and `RelevanceSpec` are made of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError, shown
from radixrt.models.config_fields import read_json_object

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"


@dataclass(frozen=True)
class Modules:
    """Modules of a model in the order in which they are applied.

    Attributes:
        file: modules.json.
        kinds: class of each module, e.g. "Pooling".
        paths: folder of each module's own files.
    """

    file: Path
    kinds: tuple[str, ...]
    paths: tuple[Path, ...]

    def config(self, kind: str) -> tuple[Path, dict[str, Any]]:
        """Return a module's config.json, its path and its contents; raises ModelLoadError if it cannot be read."""
        file = self.paths[self.kinds.index(kind)] / "config.json"
        return file, read_json_object(file)


@dataclass(frozen=True)
class Prompts:
    """Texts that are written before a text to embed it for a purpose.

    Attributes:
        by_name: e.g. {"query": "Instruct: ...\\nQuery:", "document": ""}.
        default: name of the prompt that a text gets when a request names none; None for no prompt.
    """

    by_name: dict[str, str] = field(default_factory=dict)
    default: str | None = None


@dataclass(frozen=True)
class Settings:
    """Contents of config_sentence_transformers.json; `activation_fn` is None where it names none."""

    prompts: Prompts
    activation_fn: Any = None


def read_modules(folder: Path) -> Modules | None:
    """Read modules.json; None if the folder has none.

    Raises:
        ModelLoadError: the file is malformed, or the Transformer is not the first module and in the folder itself.
    """
    file = folder / MODULES
    if not file.is_file():
        return None
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read: {error}") from error
    if not isinstance(modules, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("type", "path"))
        for entry in modules
    ):
        raise ModelLoadError(f"{file} must be a list of modules with a type and a path")
    kinds = tuple(entry["type"].rpartition(".")[2] for entry in modules)
    if kinds[:1] == ("Transformer",) and modules[0]["path"] not in ("", "."):
        raise ModelLoadError(
            f"{file}: the Transformer must be in the folder itself, not in {shown(modules[0]['path'])}"
        )
    return Modules(file, kinds, tuple(folder / entry["path"] for entry in modules))


def read_settings(folder: Path) -> Settings:
    """Read config_sentence_transformers.json; without it there are no prompts.

    Raises:
        ModelLoadError: the file is malformed; names the field.
    """
    file = folder / SETTINGS
    if not file.is_file():
        return Settings(Prompts())
    settings = read_json_object(file)
    prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelLoadError(f"{file}: prompts must be an object of texts, not {shown(prompts)}")
    if default is not None and default not in prompts:
        raise ModelLoadError(f"{file}: default_prompt_name {shown(default)} is not the name of a prompt")
    return Settings(Prompts(prompts, default), settings.get("activation_fn"))
