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
from radixrt.cli import main
from radixrt.parts.tiers.folder import stored_models, zero_pages
from radixrt.parts.tiers.policy import Prices
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


@pytest.mark.parametrize("field", [0, 12, 16, 20, 28, 44, 64, 74, 304])
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


SECRET = [7_777] * (2 * PAGE) + PROMPT[: 2 * PAGE] + [5]
"""A prompt whose tokens are recognized in the table."""


def holds(folder: Path, tokens: list[int]) -> bool:
    return np.array(tokens, np.int32).tobytes() in (files_of(folder) / "records").read_bytes()


def used_bytes(folder: Path) -> int:
    return (files_of(folder) / "pages-0").stat().st_blocks * 512


def keep_three_clients(folder: Path) -> None:
    with engine(folder) as made:
        for salt in ("k5:alice", "k5:alicesalt", "k3:bob"):
            made.generate(SECRET, SAMPLING, cache_salt=salt)


def cached_of(folder: Path) -> dict[str, int]:
    with engine(folder) as made:
        salts = ("k5:alice", "k5:alicesalt", "k3:bob")
        return {salt: made.generate(SECRET, SAMPLING, cache_salt=salt).usage.cached_tokens for salt in salts}


def test_prompts_of_a_key_are_wiped_with_their_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kv"
    keep_three_clients(folder)
    before = used_bytes(folder)
    assert main(["cache", "list", "--kv-disk", str(folder)]) == 0
    assert f"smollm2-135m-instruct  {3 * 4 * PAGE}" in capsys.readouterr().out
    assert main(["cache", "wipe", "--kv-disk", str(folder), "--key", "alice"]) == 0
    assert capsys.readouterr().out == f"smollm2-135m-instruct: removed {2 * 4 * PAGE} tokens\n"
    assert before - used_bytes(folder) >= 8 * PAGE * TOKEN_BYTES
    assert cached_of(folder) == {"k5:alice": 0, "k5:alicesalt": 0, "k3:bob": 4 * PAGE}
    assert main(["cache", "wipe", "--kv-disk", str(folder), "--key", "alice", "--salt", "salt"]) == 0
    assert cached_of(folder) == {"k5:alice": 4 * PAGE, "k5:alicesalt": 0, "k3:bob": 4 * PAGE}
    assert holds(folder, SECRET[:PAGE])
    for key in ("alice", "bob"):
        main(["cache", "wipe", "--kv-disk", str(folder), "--key", key])
    assert not holds(folder, SECRET[:PAGE])
    assert used_bytes(folder) <= PAGE_HEADER_BYTES


def test_a_model_is_wiped_unless_it_is_in_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with engine(folder):
        assert main(["cache", "wipe", "--kv-disk", str(folder)]) == 1
        assert "in use" in capsys.readouterr().out
        assert main(["cache", "wipe", "--kv-disk", str(folder), "--salt", ""]) == 1
    assert main(["cache", "wipe", "--kv-disk", str(folder), "--model", "other"]) == 2
    assert stored_models(folder)
    assert main(["cache", "wipe", "--kv-disk", str(folder), "--model", "smollm2-135m-instruct"]) == 0
    assert stored_models(folder) == []


def test_a_running_engine_forgets_a_key_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prices, "pays", lambda *_: True)  # however slow the disk is beside the processor
    folder = tmp_path / "kv"
    keep_three_clients(folder)
    before = used_bytes(folder)
    with engine(folder) as made:
        for salt in ("k5:alice", "k3:bob"):  # from disk into the host tier and the pool
            assert made.generate(SECRET, SAMPLING, cache_salt=salt).usage.cached_tokens == 4 * PAGE
        assert made.client.control("forget_owner", "k5:alice").ok
        assert made.generate(SECRET, SAMPLING, cache_salt="k3:bob").usage.cached_tokens >= 4 * PAGE
        assert before - used_bytes(folder) >= 8 * PAGE * TOKEN_BYTES
        assert made.generate(SECRET, SAMPLING, cache_salt="k5:alice").usage.cached_tokens == 0
        assert made.generate(SECRET, SAMPLING, cache_salt="k5:alicesalt").usage.cached_tokens == 0
        assert made.client.control("forget", "k5:alicesalt").ok
    assert cached_of(folder) == {"k5:alice": 4 * PAGE, "k5:alicesalt": 0, "k3:bob": 4 * PAGE}


def test_models_unused_for_the_longest_time_make_room(folder: Path) -> None:
    with engine(folder, dtype="float32") as made:
        ask(made)
    assert len(stored_models(folder)) == 2
    with engine(folder, dtype="float32", kv_disk_gib=5.5 * GIB_OF_PAGES):
        pass
    (left,) = stored_models(folder)
    assert left.pages


def test_pages_of_the_host_tier_are_overwritten(tmp_path: Path) -> None:
    for rank, size in enumerate((10, 6)):
        (tmp_path / f"arena-{rank}").write_bytes(b"x" * (4 * 3 * size))
    zero_pages(str(tmp_path / "arena"), 3, [10, 6], np.array([1, 3], np.int32))
    for rank, size in enumerate((10, 6)):
        page = 3 * size
        assert (tmp_path / f"arena-{rank}").read_bytes() == (b"x" * page + bytes(page)) * 2
