"""One small engine on a random model for each file of tests, which every test leaves as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radixrt.engine.engine import Engine
from tests.engine.helpers import assert_at_rest, start


@pytest.fixture(scope="module")
def shared(tiny_model: Callable[[str], Path]) -> Iterator[Engine]:
    with start(tiny_model("llama"), kv_cache_tokens=8192) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """The module's engine; afterwards nothing of the test's may be left in it."""
    yield shared
    assert_at_rest(shared)


@pytest.fixture(scope="module")
def uncached(tiny_model: Callable[[str], Path]) -> Iterator[Engine]:
    """The same model, with the prefix cache off."""
    with start(tiny_model("llama"), prefix_cache=False) as engine:
        yield engine
