"""Labels and activations of sequence classification models, by their config.json."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.errors import ModelLoadError
from radixrt.models.classifier_spec import ClassifierSpec, parse_classifier

SIGMOID = "torch.nn.modules.activation.Sigmoid"
THREE = {"0": "a", "1": "b", "2": "c"}


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, ("LABEL_0",), "none"),
        ({"id2label": {"0": "reward"}}, ("reward",), "none"),
        ({"id2label": {"2": "c", "0": "a", "1": "b"}}, ("a", "b", "c"), "softmax"),
        ({"id2label": THREE, "problem_type": "single_label_classification"}, ("a", "b", "c"), "softmax"),
        ({"id2label": THREE, "problem_type": "multi_label_classification"}, ("a", "b", "c"), "sigmoid"),
        ({"id2label": THREE, "problem_type": "regression"}, ("a", "b", "c"), "none"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, ("LABEL_0",), "none"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": SIGMOID}}, ("LABEL_0",), "sigmoid"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": SIGMOID}, ("LABEL_0",), "sigmoid"),
        (
            {"id2label": THREE, "problem_type": "regression", "sentence_transformers": {"activation_fn": "x.Softmax"}},
            ("a", "b", "c"), "softmax",
        ),
    ],
)  # fmt: skip
def test_labels_and_activation(config: dict[str, Any], labels: tuple[str, ...], activation: Any) -> None:
    assert parse_classifier(config) == ClassifierSpec(labels, activation)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"id2label": {"1": "a"}}, "id2label"),
        ({"id2label": ["a"]}, "id2label"),
        ({"id2label": {}}, "id2label"),
        ({"num_labels": 0}, "num_labels"),
        ({"problem_type": "ranking"}, "problem_type 'ranking'"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation_fn 'torch.nn.Tanh'"),
        ({"sbert_ce_default_activation_function": 5}, "activation_fn 5"),
    ],
)
def test_what_is_not_supported_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        parse_classifier(config)
