"""Greedy text is that of transformers whether shared prefixes of decode rows are computed once or not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixrt.messages.wire import unpack_i32
from radixrt.parts.sharing.scheduler import SharedColumns, SharingPlanner
from radixrt.scheduler.req import Req
from tests.equivalence.test_tiny_models import assert_same, engine
from tests.scheduler.fake_runner import FREE


def tree_prompts() -> list[list[int]]:
    """Two roots, two branches each, three leaves each, of odd lengths; one prompt is another's prefix; all shuffled."""
    rng = random.Random(7)

    def text(n: int) -> list[int]:
        return [rng.randrange(3, 500) for _ in range(n)]

    prompts = []
    for _ in range(2):
        root = text(rng.randrange(17, 30))
        for _ in range(2):
            branch = root + text(rng.randrange(3, 20))
            prompts += [branch] + [branch + text(rng.randrange(1, 9)) for _ in range(3)]
    rng.shuffle(prompts)
    return prompts


@pytest.mark.parametrize(
    ("kind", "backend"),
    [*itertools.product(["llama", "mistral", "qwen2", "qwen3"], ["auto", "torch_native"]), ("qwen3_moe", "auto")],
)
def test_sharing_changes_no_text(
    kind: str, backend: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[SharedColumns] = []
    columns = SharingPlanner.columns

    def spy(self: SharingPlanner, *args: object) -> SharedColumns:
        shared.append(columns(self, *args))  # type: ignore[arg-type]
        return shared[-1]

    costs = msgspec.structs.replace(FREE, prompts=None)
    monkeypatch.setattr("radixrt.runner.pool_sizes.cascade_costs", lambda *_: costs)
    monkeypatch.setattr(SharingPlanner, "columns", spy)
    folder, inputs = tiny_model(kind), tree_prompts()
    lengths = [5 + i % 9 for i in range(len(inputs))]
    params = [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths]
    for cascade, chunk in (("auto", 1024), ("auto", 16), ("off", 1024)):
        shared.clear()
        with engine(folder, attention_backend=backend, cascade=cascade, chunked_prefill_size=chunk) as e:
            assert_same(folder, inputs, e.generate(inputs, params), lengths)
            assert_same(folder, inputs, e.generate(inputs, params), lengths)
        assert any(len(c.segments) > 3 * 16 for c in shared) == (cascade == "auto")


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_nor_do_prompts_that_share(
    kind: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[SharedColumns] = []
    columns = SharingPlanner.extend_columns

    def spy(self: SharingPlanner, prompts: Sequence[Req], *args: Any) -> SharedColumns:
        found = columns(self, prompts, *args)
        if any(row < len(prompts) for row in unpack_i32(found.rows).tolist()):
            shared.append(found)
        return found

    monkeypatch.setattr("radixrt.runner.pool_sizes.cascade_costs", lambda *_: FREE)
    monkeypatch.setattr(SharingPlanner, "extend_columns", spy)
    folder, inputs = tiny_model(kind), tree_prompts()
    lengths = [5 + i % 9 for i in range(len(inputs))]
    params = [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths]
    for chunk, page_size in ((1024, 1), (16, 1), (1024, 4)):
        shared.clear()
        with engine(folder, attention_backend="torch_native", chunked_prefill_size=chunk, page_size=page_size) as e:
            assert_same(folder, inputs, e.generate(inputs, params), lengths)
            deeper = [[*prompt, 7, 9] for prompt in inputs]  # behind what is cached now
            assert_same(folder, deeper, e.generate(deeper, params), lengths)
        assert shared
