"""`RelevanceSpec`: how a model scores the relevance of a document to a query, by the files of its folder.

Three kinds of models do: embedding models (cosine of the vectors), sequence classification models with one label (its
score for the pair), and causal models that answer "yes" or "no" (the probability of yes), such as Qwen3-Reranker.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from radixrt.errors import ConfigError, ModelLoadError, shown
from radixrt.messages.parts import Activation
from radixrt.models.classifier_spec import read_activation
from radixrt.models.config_fields import read_json_object
from radixrt.models.embedding_spec import CAUSAL_RERANKER, EmbeddingSpec
from radixrt.models.sentence_transformers import Modules, Settings, read_modules, read_settings

if TYPE_CHECKING:
    from radixrt.models.model_config import ModelSpec

Scorer = Literal["cosine", "classifier", "tokens"]

QWEN3_RERANKER = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instruction or "Given a web search query, retrieve relevant passages that answer the query" }}
<Query>: {{ (messages | selectattr("role", "equalto", "query") | first).content }}
<Document>: {{ (messages | selectattr("role", "equalto", "document") | first).content }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""
"""Prompt that Qwen3-Reranker was trained with; Jinja drops its last line break."""

BUILT_IN_TEMPLATES = {"qwen3-reranker": QWEN3_RERANKER}
"""Templates that the option score_template names, for checkpoints that bring none."""

TRANSFORMER_SETTINGS = "sentence_bert_config.json"


@dataclass(frozen=True)
class RelevanceSpec:
    """Attributes:
    scorer: what makes a score of a pair; None for a model that scores no pairs.
    activation: what turns the logit of a pair into its score. The logit of "tokens" is the log-odds of both tokens.
    tokens: ids of the token that stands for relevant and of the one for irrelevant; None for "yes" and "no".
    template: Jinja source of a pair's prompt, from the option; None for the model's own template, if it has one.
    instruction: the task, for the template, where a request names none.
    add_generation_prompt: variable of the template.
    """

    scorer: Scorer | None = None
    activation: Activation = "none"
    tokens: tuple[int, int] | None = None
    template: str | None = None
    instruction: str | None = None
    add_generation_prompt: bool = False


def load_relevance_spec(
    folder: Path, model: ModelSpec, embedding: EmbeddingSpec, score_template: str | None = None
) -> RelevanceSpec:
    """Choose the scorer of a model.

    Args:
        score_template: name of a built-in template, or a file with one.

    Raises:
        ModelLoadError: a file is malformed, or asks for something that is not supported; names it.
        ConfigError: the template cannot be read, or the model cannot use one.
    """
    modules, settings = read_modules(folder), read_settings(folder)
    template = None if score_template is None else _read_template(score_template)
    generation = _adds_generation_prompt(folder)
    instruction = settings.prompts.by_name.get(settings.prompts.default or "")
    if model.classifier is not None:
        if len(model.classifier.labels) > 1:
            if template is not None:
                raise ConfigError("score_template is for one score a pair, and this model has several labels")
            return RelevanceSpec()
        activation = _activation(settings, model.classifier.activation)
        return RelevanceSpec("classifier", activation, None, template, instruction, generation)
    if modules is not None and modules.kinds == CAUSAL_RERANKER:
        activation = _activation(settings, "sigmoid")
        return RelevanceSpec(
            "tokens", activation, _tokens(modules, model.vocab_size), template, instruction, generation
        )
    if template is not None:
        if not model.has_head:
            raise ConfigError(
                f"score_template is for models that generate or classify; {model.architecture} embeds only"
            )
        return RelevanceSpec("tokens", "sigmoid", None, template, instruction, generation)
    return RelevanceSpec("cosine" if embedding.is_declared else None)


def _read_template(name: str) -> str:
    if name in BUILT_IN_TEMPLATES:
        return BUILT_IN_TEMPLATES[name]
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"score_template {shown(name)} is neither a file nor one of {', '.join(BUILT_IN_TEMPLATES)}: {error}"
        ) from error


def _activation(settings: Settings, default: Activation) -> Activation:
    if settings.activation_fn is None:
        return default
    found = read_activation(settings.activation_fn, "config_sentence_transformers.json: activation_fn")
    if found == "softmax":
        raise ModelLoadError("config_sentence_transformers.json: the softmax of one score is 1 for every pair")
    return found


def _tokens(modules: Modules, vocab_size: int) -> tuple[int, int]:
    file, config = modules.config("LogitScore")
    found = []
    for name in ("true_token_id", "false_token_id"):
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            raise ModelLoadError(
                f"{file}: {name} {shown(value)} is not supported; scores are log-odds of two token ids, which are "
                f"below {vocab_size}"
            )
        found.append(value)
    return found[0], found[1]


def _adds_generation_prompt(folder: Path) -> bool:
    """Read the argument that sentence-transformers gives to the chat template."""
    file = folder / TRANSFORMER_SETTINGS
    value: object = read_json_object(file) if file.is_file() else {}
    for name in ("processing_kwargs", "chat_template", "add_generation_prompt"):
        value = value.get(name) if isinstance(value, dict) else None
    if value not in (None, True, False):
        raise ModelLoadError(f"{file}: add_generation_prompt must be true or false, not {shown(value)}")
    return value is True
