"""A tiny model with a long context: the tests of this folder kill processes in the middle of its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "long", "llama", max_position_embeddings=65536)
