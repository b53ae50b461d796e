"""Prefixes on disk: an engine that starts finds the prompts of earlier ones, and computes whatever is damaged."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixrt import Engine
from radixrt.parts.tiers.folder import stored_models
from radixrt.parts.tiers.records import HEADER_BYTES
from radixrt.parts.tiers.settings import PAGE_HEADER_BYTES, page_stride

PAGE = 64
PROMPT = [(17 * i * i + 5 * i) % 40_000 + 100 for i in range(10 * PAGE + 1)]
OTHER = PROMPT[: 4 * PAGE] + [(13 * i * i + 7 * i) % 40_000 + 100 for i in range(6 * PAGE + 1)]
SAMPLING = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
TOKEN_BYTES = 23_040
"""Bytes of one token's keys and values in the embedded model."""
GIB_OF_PAGES = page_stride(PAGE * TOKEN_BYTES) / 2**30


@contextmanager
def engine(folder: Path, **options: Any) -> Iterator[Engine]:
    given = {"kv_host_gib": 0.2, "kv_disk": folder, "kv_disk_gib": 0.2, "kv_cache_tokens": 2048, **options}
    with Engine(executor="uni", show_progress=False, **given) as made:
        yield made


def ask(made: Engine, prompt: list[int] = PROMPT) -> tuple[list[int], int]:
    """Return the tokens of the answer, and the number of prompt tokens that were not computed."""
    answer = made.generate(prompt, SAMPLING)
    return answer.token_ids, answer.usage.cached_tokens


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A folder in which an engine has left PROMPT, and the answers to PROMPT and OTHER."""
    folder = tmp_path_factory.mktemp("kv") / "kv"
    with engine(folder) as made:
        tokens, cached = ask(made)
        assert cached == 0
    with Engine(executor="uni", show_progress=False, kv_cache_tokens=2048) as plain:
        assert ask(plain)[0] == tokens
        other = ask(plain, OTHER)[0]
    return {"folder": folder, "prompt": tokens, "other": other}


@pytest.fixture
def folder(answers: dict[str, Any], tmp_path: Path) -> Path:
    """A copy of the folder."""
    target = tmp_path / "kv"
    shutil.copytree(answers["folder"], target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return target


def files_of(folder: Path) -> Path:
    (model,) = stored_models(folder)
    return model.folder / "0"


def test_the_next_engine_computes_no_whole_page(folder: Path, answers: dict[str, Any]) -> None:
    with engine(folder) as made:
        assert ask(made) == (answers["prompt"], 10 * PAGE)
        found = ask(made, OTHER)
        assert found == (answers["other"], 4 * PAGE)
    with engine(folder) as made:
        assert ask(made, OTHER) == (answers["other"], 10 * PAGE)


def test_the_files_are_this_users_alone(answers: dict[str, Any]) -> None:
    found = [answers["folder"], *answers["folder"].rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert {path.name for path in found if path.is_file()} == {
        "model.json",
        "lock",
        "layout.json",
        "records",
        "pages-0",
    }


def test_another_namespace_finds_nothing(folder: Path) -> None:
    with engine(folder) as made:
        assert made.generate(PROMPT, SAMPLING, cache_salt="other").usage.cached_tokens == 0


def test_another_dtype_has_files_of_its_own(folder: Path) -> None:
    with engine(folder, dtype="float32") as made:
        assert ask(made)[1] == 0
    assert len(stored_models(folder)) == 2


@pytest.mark.parametrize("page", [1, 6, 10])
def test_a_flipped_byte_of_a_page_is_computed(folder: Path, answers: dict[str, Any], page: int) -> None:
    path = files_of(folder) / "pages-0"
    data = bytearray(path.read_bytes())
    at = page * page_stride(PAGE * TOKEN_BYTES) + PAGE_HEADER_BYTES + 12_345
    assert any(data[at : at + 1000])
    data[at] ^= 0x10
    path.write_bytes(data)
    with engine(folder) as made:
        tokens, cached = ask(made)
        assert tokens == answers["prompt"]
        assert cached < 10 * PAGE
    with engine(folder) as made:  # and the page is written again
        assert ask(made) == (answers["prompt"], 10 * PAGE)


@pytest.mark.parametrize("field", [0, 8, 16, 24, 40, 56, 60, 300])
def test_a_flipped_byte_of_the_table_is_computed(folder: Path, answers: dict[str, Any], field: int) -> None:
    path = files_of(folder) / "records"
    table = np.fromfile(path, np.uint8)
    size = int.from_bytes(table[23:27].tobytes(), "little")
    (used,) = np.nonzero(table[HEADER_BYTES:].reshape(-1, size)[:, 0])
    table[HEADER_BYTES + size * used[4] + field] ^= 1
    table.tofile(path)
    with engine(folder) as made:
        tokens, cached = ask(made)
        assert tokens == answers["prompt"]
        assert cached == 4 * PAGE
        assert ask(made, OTHER)[0] == answers["other"]


@pytest.mark.parametrize("name", ["pages-0", "records"])
@pytest.mark.parametrize("how", ["cut", "missing", "random"])
def test_a_damaged_file_is_computed(folder: Path, answers: dict[str, Any], name: str, how: str) -> None:
    path = files_of(folder) / name
    if how == "missing":
        path.unlink()
    elif how == "cut":
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2 + 77)
    else:
        path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))
    with engine(folder) as made:
        assert ask(made)[0] == answers["prompt"]
    with engine(folder) as made:
        assert ask(made) == (answers["prompt"], 10 * PAGE)


def test_a_full_tier_keeps_what_it_has_and_answers(tmp_path: Path, answers: dict[str, Any]) -> None:
    small = {"kv_disk_gib": 12.5 * GIB_OF_PAGES}
    with engine(tmp_path / "kv", **small) as made:
        assert ask(made)[0] == answers["prompt"]
        assert ask(made, OTHER)[0] == answers["other"]
    data = files_of(tmp_path / "kv") / "pages-0"
    assert data.stat().st_blocks * 512 <= 13.5 * GIB_OF_PAGES * 2**30
    with engine(tmp_path / "kv", **small) as made:
        assert ask(made)[0] == answers["prompt"]
        assert ask(made, OTHER)[0] == answers["other"]


def test_a_smaller_quota_keeps_the_pages_that_fit(folder: Path, answers: dict[str, Any]) -> None:
    small = {"kv_disk_gib": 5.5 * GIB_OF_PAGES}
    with engine(folder, **small) as made:
        tokens, cached = ask(made)
        assert tokens == answers["prompt"]
        assert cached == 5 * PAGE
    assert (files_of(folder) / "pages-0").stat().st_blocks * 512 <= 6.5 * GIB_OF_PAGES * 2**30
