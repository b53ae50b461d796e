"""`ModelTasks`: what a model does besides generating, by the files of its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from radixrt.models.classifier_spec import ClassifierSpec
from radixrt.models.embedding_spec import EmbeddingSpec, load_embedding_spec
from radixrt.models.relevance_spec import RelevanceSpec, load_relevance_spec

if TYPE_CHECKING:
    from radixrt.models.model_config import ModelSpec


@dataclass(frozen=True)
class ModelTasks:
    """Attributes:
    embedding: how hidden states become embeddings.
    classifier: head of a sequence classification model, which neither embeds nor generates; None for any other.
    relevance: how pairs of texts are scored.
    """

    embedding: EmbeddingSpec = field(default_factory=EmbeddingSpec)
    classifier: ClassifierSpec | None = None
    relevance: RelevanceSpec = field(default_factory=RelevanceSpec)


def load_tasks(folder: Path, model: ModelSpec, score_template: str | None = None) -> ModelTasks:
    """Read the tasks of a model.

    Args:
        score_template: see `load_relevance_spec`.

    Raises:
        ModelLoadError, ConfigError: a file or the template is malformed or not supported; names it.
    """
    embedding = load_embedding_spec(folder, model)
    return ModelTasks(embedding, model.classifier, load_relevance_spec(folder, model, embedding, score_template))
