"""The folder of an engine, and the removal of folders that killed engines left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from radixrt.engine.engine_folder import EngineFolder, remove_stale_folders

OWNER = """
import sys
from radixrt.engine.engine_folder import EngineFolder
folder = EngineFolder()
open(folder.path + "/masks", "w").close()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_folder_is_private_and_its_owner_removes_it(tmp_path: Path) -> None:
    folder = EngineFolder()
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    assert remove_stale_folders() == []
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_engine_is_removed_and_that_of_a_live_one_is_not() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    path = owner.stdout.readline().strip()
    assert remove_stale_folders() == []
    owner.kill()
    owner.communicate()
    assert os.path.exists(path)
    assert remove_stale_folders() == [path]
    assert not os.path.exists(path)


def test_a_later_process_with_the_pid_of_the_owner_keeps_nothing(tmp_path: Path) -> None:
    stale = tmp_path / f"radixrt-{os.getpid()}.1-x"  # this pid, and the start time of another process
    stale.mkdir()
    assert remove_stale_folders() == [str(stale)]


def test_a_lock_protects_the_folder_of_an_owner_that_is_not_visible(tmp_path: Path) -> None:
    folder = EngineFolder()
    elsewhere = tmp_path / "radixrt-999999999.1-x"  # as an engine in another container names it
    os.rename(folder.path, elsewhere)
    assert remove_stale_folders() == []


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "radixrt-notes").mkdir()
    (tmp_path / "radixrt-1.2-file").write_text("")
    (tmp_path / "radixrt-999999999.1-link").symlink_to(tmp_path / "radixrt-notes")
    remove_stale_folders()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_temporary_folder_with_a_name_too_long_for_sockets_is_one_line(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 100)
    base.mkdir()
    command = [sys.executable, "-m", "radixrt", "launch", "--load-format", "dummy", "--port", "0"]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(base)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("radixrt: the name of the temporary folder")
    assert "set TMPDIR" in line
    assert "Traceback" not in done.stderr
    assert not [each for each in base.iterdir() if each.name.startswith("radixrt-")]
