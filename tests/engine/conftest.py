"""One small engine for each file of tests, which every test leaves as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers

from radixrt.engine.engine import Engine
from tests.engine.helpers import assert_at_rest, start


@pytest.fixture(scope="module")
def shared(tiny_model: Callable[[str], Path]) -> Iterator[Engine]:
    with start(tiny_model("llama")) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """The module's engine; afterwards nothing of the test's may be left in it."""
    yield shared
    assert_at_rest(shared)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[[str], Path]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tiny_model("llama") / "tokenizer.json"))
