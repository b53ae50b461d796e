"""Fixtures of the tests of constraints: the embedded model's vocabulary and its mask libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixrt.config import ModelConfig
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.models.loading.source import prepare_model

VOCAB_SIZE = 49_152
EOS_IDS = (0, 2)


@pytest.fixture(scope="session")
def model_folder(cache_folder: Path) -> Path:
    return prepare_model(ModelConfig()).folder


@pytest.fixture(scope="session")
def vocabulary(model_folder: Path) -> Vocabulary:
    return Vocabulary.from_folder(model_folder, VOCAB_SIZE, EOS_IDS)


@pytest.fixture(scope="session")
def backends(vocabulary: Vocabulary) -> Backends:
    return Backends(vocabulary)
