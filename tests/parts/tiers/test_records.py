"""`PageRecords`: what a table returns is what was written, whatever bytes the file holds."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import KEY_BYTES
from radixrt.parts.tiers.namespaces import is_of, namespace_id, owner_of
from radixrt.parts.tiers.records import HEADER_BYTES, PageRecords, SharedRecords, chain, open_records, summary

PAGE = 4
SEED = namespace_id("")
Path_ = tuple[bytes, list[int], list[int]]


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def tokens(*numbers: int) -> np.ndarray:
    """Pages of PAGE tokens, each a repeated number."""
    return np.repeat(np.array(numbers, np.int32), PAGE)


def listed(records: PageRecords) -> list[Path_]:
    return [(seed, found.tolist(), numbers.tolist()) for seed, found, numbers in records.runs()]


def forked(path: Path, num_pages: int = 9) -> PageRecords:
    """A table of a prefix of two pages, two paths after it, and a prefix of another namespace."""
    records = PageRecords(str(path), num_pages, PAGE)
    shared = records.write(pages(5, 2), tokens(7, 8), 0, SEED, SEED)
    end = shared[-KEY_BYTES:]
    records.write(pages(3), tokens(7, 8, 9), 2 * PAGE, end, SEED)
    records.write(pages(1, 4), tokens(7, 8, 1, 2), 2 * PAGE, end, SEED)
    records.write(pages(7), tokens(7), 0, namespace_id("other"), namespace_id("other"))
    return records


FORKED: list[Path_] = [
    (SEED, tokens(7, 8, 9).tolist(), [5, 2, 3]),
    (SEED, tokens(7, 8, 1, 2).tolist(), [5, 2, 1, 4]),
    (namespace_id("other"), tokens(7).tolist(), [7]),
]


def test_paths_are_those_written(tmp_path: Path) -> None:
    records = forked(tmp_path / "table")
    assert sorted(listed(records)) == sorted(FORKED)
    assert sorted(listed(PageRecords(str(tmp_path / "table"), 9, PAGE))) == sorted(FORKED)
    assert summary(tmp_path / "table")[0] == 6


def test_hashes_are_the_chain_over_namespace_and_tokens(tmp_path: Path) -> None:
    records = PageRecords(str(tmp_path / "table"), 4, PAGE)
    hashes = records.write(pages(3, 1), tokens(7, 8), 0, SEED, SEED)
    first = chain(SEED, tokens(7).tobytes())
    assert hashes == first + chain(first, tokens(8).tobytes())
    assert chain(SEED, b"") != chain(namespace_id("other"), b"")


def test_a_table_in_memory_outlives_its_writer(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    file = MemoryFile(path)
    forked(Path(path))
    assert sorted(listed(PageRecords(path, 9, PAGE))) == sorted(FORKED)
    file.close()


def test_pages_after_a_cleared_page_belong_to_no_path(tmp_path: Path) -> None:
    records = forked(tmp_path / "table")
    records.clear(pages(1))
    assert sorted(listed(records)) == sorted([FORKED[0], FORKED[2]])
    # The record of page 4 is cleared too: page 1 with the same tokens does not bring page 4 back.
    end = chain(chain(SEED, tokens(7).tobytes()), tokens(8).tobytes())
    records.write(pages(1), tokens(7, 8, 1), 2 * PAGE, end, SEED)
    assert sorted(path for _, _, path in listed(records)) == [[5, 2, 1], [5, 2, 3], [7]]


def test_a_cleared_page_keeps_no_token(tmp_path: Path) -> None:
    records = PageRecords(str(tmp_path / "table"), 4, PAGE)
    records.write(pages(3), np.frombuffer(b"secret prompt 16", np.int32), 0, SEED, SEED)
    assert b"secret" in (tmp_path / "table").read_bytes()
    records.clear(pages(3))
    assert b"secret" not in (tmp_path / "table").read_bytes()


def test_a_prefix_written_twice_is_listed_once(tmp_path: Path) -> None:
    records = forked(tmp_path / "table")
    records.write(pages(8, 9), tokens(7, 8), 0, SEED, SEED)
    found = listed(records)
    assert len(found) == 3
    used = {page for path in found for page in path[2]}
    assert not {5, 2} <= used or not {8, 9} & used
    assert summary(tmp_path / "table")[0] == len(used)


def test_paths_come_by_their_last_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    records = forked(tmp_path / "table")
    now = 2000.0
    records.touch(pages(5, 2, 3))
    assert listed(records)[-1] == FORKED[0]
    assert summary(tmp_path / "table") == (6, PAGE, 2000)


def test_other_sizes_and_foreign_files_count_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "table"
    forked(path)
    assert listed(PageRecords(str(path), 9, 2 * PAGE)) == []
    assert listed(PageRecords(str(path), 9, PAGE)) == []  # the other size has replaced it
    path.write_bytes(b"something else")
    assert listed(PageRecords(str(path), 9, PAGE)) == []
    assert sorted(listed(forked(path))) == sorted(FORKED)
    assert listed(PageRecords(str(path), 9, PAGE, create=True)) == []


def test_fewer_and_more_pages_keep_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "table"
    forked(path)
    kept = listed(PageRecords(str(path), 5, PAGE))
    assert sorted(kept) == sorted(FORKED[:2])
    assert sorted(listed(PageRecords(str(path), 50, PAGE))) == sorted(FORKED[:2])
    assert listed(PageRecords(str(path), 4, PAGE)) == []  # page 5 begins both paths


def test_lengths_must_fit(tmp_path: Path) -> None:
    records = PageRecords(str(tmp_path / "table"), 4, PAGE)
    for given_pages, given_tokens, start in [
        (pages(1), tokens(1, 2), 0),
        (pages(1), tokens(1), 1),
        (pages(1, 2), tokens(1), 0),
    ]:
        with pytest.raises(ValueError, match="do not hold"):
            records.write(given_pages, given_tokens, start, SEED, SEED)
    assert records.write(pages(), tokens(), 0, SEED, SEED) == b""


def prefixes(paths: list[Path_]) -> set[tuple[bytes, tuple[int, ...], tuple[int, ...]]]:
    """Every prefix of whole pages of the paths, with its pages."""
    return {
        (seed, tuple(found[: end * PAGE]), tuple(numbers[:end]))
        for seed, found, numbers in paths
        for end in range(1, len(numbers) + 1)
    }


@settings(max_examples=300, deadline=None)
@given(data=st.data(), random_=st.randoms(use_true_random=False))
def test_any_bytes_give_written_prefixes_or_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, random_: random.Random
) -> None:
    path = tmp_path_factory.mktemp("any") / "table"
    forked(path)
    table = bytearray(path.read_bytes())
    size = (len(table) - HEADER_BYTES) // 10
    at = HEADER_BYTES + size * random_.randrange(10)
    match data.draw(st.sampled_from(["flip", "copy", "random", "truncated", "header", "appended", "swap", "fields"])):
        case "flip":
            table[random_.randrange(HEADER_BYTES, len(table))] ^= 1 << random_.randrange(8)
        case "copy":  # the record of another page: the keys and values of that page are not there
            other = HEADER_BYTES + size * random_.randrange(10)
            table[at : at + size] = table[other : other + size]
        case "random":
            begin = random_.randrange(len(table))
            table[begin:] = random_.randbytes(len(table) - begin)
        case "truncated":
            del table[random_.randrange(len(table)) :]
        case "header":
            table[random_.randrange(HEADER_BYTES)] ^= 0xFF
        case "appended":
            table += random_.randbytes(random_.randrange(3 * size))
        case "swap":  # fields of one record in another
            other, field = HEADER_BYTES + size * random_.randrange(10), random_.randrange(4, size - 4)
            end = random_.randrange(field, size)
            table[at + field : at + end] = table[other + field : other + end]
        case "fields":  # a record that follows itself
            table[at + 48 : at + 64] = table[at + 32 : at + 48]
    path.write_bytes(table)
    found = listed(PageRecords(str(path), 9, PAGE))
    assert prefixes(found) <= prefixes(FORKED)


def test_a_large_table_is_read_in_one_pass(tmp_path: Path) -> None:
    """1000 prompts of 28 pages that share three pages: the paths are complete."""
    records = PageRecords(str(tmp_path / "table"), 26_000, 64)
    generator = np.random.default_rng(0)
    shared = generator.integers(0, 50_000, 3 * 64, np.int32)
    end = records.write(pages(1, 2, 3), shared, 0, SEED, SEED)[-KEY_BYTES:]
    for at in range(1000):
        own = generator.integers(0, 50_000, 25 * 64, np.int32)
        numbers = np.arange(4 + 25 * at, 4 + 25 * (at + 1), dtype=np.int32)
        records.write(numbers, np.concatenate([shared, own]), 3 * 64, end, SEED)
    found = list(records.runs())
    assert len(found) == 1000
    assert all(len(path) == 28 and len(whole) == 28 * 64 for _, whole, path in found)


def test_pages_are_found_by_namespace_and_by_owner(tmp_path: Path) -> None:
    records = PageRecords(str(tmp_path / "table"), 9, PAGE)
    names = ["", "a salt", "k5:alice", "k5:alicesalt", "k3:bob", "g5:alice", "k5:alic"]
    for number, name in enumerate(names, 1):
        records.write(pages(number), tokens(7), 0, namespace_id(name), namespace_id(name))
    table = open_records(tmp_path / "table")
    assert table is not None

    def found(namespace: str, *, whole_owner: bool) -> list[str]:
        numbers = table.pages_of(lambda identity: is_of(identity, namespace, whole_owner=whole_owner))
        return [names[number - 1] for number in numbers]

    assert found("k5:alice", whole_owner=True) == ["k5:alice", "k5:alicesalt"]
    assert found("g5:alice", whole_owner=True) == ["g5:alice"]
    for name in names:
        assert found(name, whole_owner=False) == [name]
    assert [owner_of(name) for name in names] == ["", "", "k5:alice", "k5:alice", "k3:bob", "g5:alice", ""]
    assert open_records(Path(__file__)) is None


def test_another_process_sees_whether_a_page_has_changed(tmp_path: Path) -> None:
    records = PageRecords(str(tmp_path / "table"), 4, PAGE)
    key = records.write(pages(3), tokens(7), 0, SEED, SEED)
    shared = SharedRecords(str(tmp_path / "table"))
    before = shared.changes(3, key)
    assert before is not None
    records.touch(pages(3))
    assert shared.changes(3, key) == before
    assert shared.changes(2, key) is None
    assert shared.changes(99, key) is None
    assert shared.changes(3, key[::-1]) is None
    records.clear(pages(3))
    assert shared.changes(3, key) is None
    # The same tokens are in the page again, but other tokens may have been there in between.
    assert records.write(pages(3), tokens(7), 0, SEED, SEED) == key
    assert shared.changes(3, key) not in (None, before)
    records.clear()
    records.write(pages(3), tokens(7), 0, SEED, SEED)
    assert shared.changes(3, key) > before + 2
    shared.close()


def test_a_file_that_is_no_table_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(bytes(HEADER_BYTES))
    with pytest.raises(OSError, match="is no table of records"):
        SharedRecords(str(tmp_path / "table"))
