"""Folders of compiled kernels and converted models are this user's alone, whatever the umask and whoever was first."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt import private_files
from radixrt.private_files import is_trusted, make_private_folder

STRANGER = 54321


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def give_to_a_stranger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a path somebody else's: by its owner, or, without the right to change owners, by who this process is."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
    else:
        monkeypatch.setattr(private_files.os, "geteuid", lambda: STRANGER)


@pytest.mark.usefixtures("no_umask")
def test_every_folder_that_is_made_is_private(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "cache" / "kernels")
    assert [mode(tmp_path / each) for each in ("cache", "cache/kernels")] == [0o700, 0o700]


@pytest.mark.parametrize(("given", "then"), [(0o777, 0o755), (0o770, 0o750), (0o755, 0o755), (0o700, 0o700)])
def test_others_lose_the_right_to_write_and_keep_the_right_to_read(tmp_path: Path, given: int, then: int) -> None:
    tmp_path.chmod(given)
    assert is_trusted(tmp_path) is (given == then)
    make_private_folder(tmp_path)
    assert mode(tmp_path) == then
    assert is_trusted(tmp_path)


@pytest.mark.parametrize("writable", [0o602, 0o620, 0o666])
def test_a_file_that_others_can_write_to_is_not_trusted(tmp_path: Path, writable: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    file.chmod(0o644)
    assert is_trusted(file)
    file.chmod(writable)
    assert not is_trusted(file)


def test_a_strangers_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o755)
    give_to_a_stranger(folder, monkeypatch)
    with pytest.raises(PermissionError, match=str(folder)):
        make_private_folder(folder)
