"""`ClassifierSpec`: the head of a sequence classification model, by its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixrt.errors import ModelLoadError, shown
from radixrt.messages.parts import Activation
from radixrt.models.config_fields import positive_int

ACTIVATION_CLASSES: dict[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""Torch's modules that sentence-transformers may name as activation_fn."""

PROBLEM_TYPES: dict[str, Activation] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
DEFAULT_LABELS = 2
"""Labels of a configuration of transformers that names none."""


@dataclass(frozen=True)
class ClassifierSpec:
    """Attributes:
    labels: names of the labels, in the order of the logits.
    activation: what turns logits into scores, unless a request asks for the logits.
    """

    labels: tuple[str, ...]
    activation: Activation


def parse_classifier(config: Mapping[str, Any]) -> ClassifierSpec:
    """Read id2label, num_labels, problem_type and sentence-transformers' activation of a sequence classification model.

    Raises:
        ModelLoadError: a field is malformed or has a value that is not supported; names it.
    """
    labels = _labels(config)
    named = config.get("sentence_transformers")
    function = named.get("activation_fn") if isinstance(named, dict) else None
    function = function or config.get("sbert_ce_default_activation_function")
    if function is not None:
        return ClassifierSpec(labels, read_activation(function, "config.json: activation_fn"))
    problem = config.get("problem_type")
    if problem is None:
        return ClassifierSpec(labels, "none" if len(labels) == 1 else "softmax")
    if problem not in PROBLEM_TYPES:
        raise ModelLoadError(
            f"config.json: problem_type {shown(problem)} is not supported; {', '.join(PROBLEM_TYPES)} are"
        )
    if problem == "single_label_classification" and len(labels) == 1:
        return ClassifierSpec(labels, "none")  # the softmax of one logit is 1 for every text
    return ClassifierSpec(labels, PROBLEM_TYPES[problem])


def read_activation(name: object, field: str) -> Activation:
    """Return the activation that a class of torch stands for, e.g. "torch.nn.modules.activation.Sigmoid".

    Raises:
        ModelLoadError: the class is not supported; names the field.
    """
    found = ACTIVATION_CLASSES.get(name.rpartition(".")[2]) if isinstance(name, str) else None
    if found is None:
        raise ModelLoadError(f"{field} {shown(name)} is not supported; {', '.join(ACTIVATION_CLASSES)} of torch are")
    return found


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(positive_int(config, "num_labels", DEFAULT_LABELS)))
    expected = [str(i) for i in range(len(named))] if isinstance(named, dict) else []
    if not expected or set(named) != set(expected):
        raise ModelLoadError(f"config.json: id2label must name the labels 0, 1, ... in order, not {shown(named)}")
    return tuple(str(named[i]) for i in expected)
