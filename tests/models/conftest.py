"""Fixtures of the model tests: the converted default model, once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixrt.config import ModelConfig
from radixrt.models.loading.source import PreparedModel, prepare_model


@pytest.fixture(scope="session")
def converted_smollm(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    """The embedded default model, expanded to bfloat16 in a cache folder of this session."""
    pytest.importorskip("gguf")
    cache: Path = tmp_path_factory.mktemp("radixrt-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RADIXRT_CACHE", str(cache))
        return prepare_model(ModelConfig(dtype="bfloat16", quantization="none"))
