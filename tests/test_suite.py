"""The suite itself."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import GC_THRESHOLDS, pytest_ignore_collect
from tests.tiers import LONGEST, QUICK, ROOT, SLOW, SLOW_PATHS, TIERS, seconds_of_files, tier_of

SAMPLES = ("tests/live_tree", "tests/benchmarks/programs")
"""Two small folders, the first of the quick tier and the other of the slow one."""


def test_the_longest_files_exist() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


# --- tiers ---


class Options:
    """Stand-in for pytest's configuration with one tier."""

    def __init__(self, tier: str | None) -> None:
        self.tier = tier

    def getoption(self, name: str) -> str | None:
        assert name == "--tier"
        return self.tier


def test_slow_paths_exist_and_none_is_inside_another() -> None:
    paths = [PurePosixPath(path) for path in SLOW_PATHS]
    assert [path for path in SLOW_PATHS if not (ROOT / path).exists()] == []
    assert [(a, b) for a in paths for b in paths if a != b and a.is_relative_to(b)] == []
    assert len(set(paths)) == len(paths)


def test_every_file_is_collected_in_exactly_one_tier() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    counts = dict.fromkeys(TIERS, 0)
    for file in files:
        tiers = [tier for tier in TIERS if not pytest_ignore_collect(file, Options(tier))]  # type: ignore[arg-type]
        assert tiers == [tier_of(file.relative_to(ROOT).as_posix())], file
        assert not pytest_ignore_collect(file, Options(None)), "without --tier, every test runs"  # type: ignore[arg-type]
        counts[tiers[0]] += 1
    assert counts[QUICK] > 200
    assert counts[SLOW] > 50


def collected(*arguments: str) -> list[str]:
    """Names of the tests that pytest collects in SAMPLES."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    result = subprocess.run([*command, *arguments, *SAMPLES], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if line.startswith("tests/")]


def test_tiers_share_no_test_and_leave_none_out() -> None:
    quick, slow = collected("--tier", QUICK), collected("--tier", SLOW)
    assert quick
    assert slow
    assert [name for name in quick if not name.startswith(SAMPLES[0])] == []
    assert [name for name in slow if not name.startswith(SAMPLES[1])] == []
    assert sorted(collected()) == sorted([*quick, *slow])


@pytest.mark.parametrize(("target", "tier"), [("test", QUICK), ("test-slow", SLOW)])
def test_each_tier_has_a_make_target_that_keeps_durations(target: str, tier: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition(f"\n{target}: setup\n")[2].partition("\n\n")[0]
    assert f"--tier {tier} " in recipe
    assert f"--junitxml=.durations/{tier}.xml" in recipe
    assert ".durations/" in (ROOT / ".gitignore").read_text().splitlines()


def test_ci_runs_both_tiers() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in commands if line.startswith("make ")] == [
        "make setup",
        "make check",
        "make test",
        "make test-slow",
    ]


def test_durations_of_files(tmp_path: Path) -> None:
    report = tmp_path / "quick.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_suite" name="a" time="1.5"/>'
        '<testcase classname="tests.test_suite.TestClass" name="b" time="0.25"/>'
        '<testcase classname="tests.test_logs" name="c" time="4"/></testsuite></testsuites>'
    )
    assert seconds_of_files(report) == {"tests/test_suite.py": 1.75, "tests/test_logs.py": 4.0}


# --- processes of the suite ---


def test_processes_of_the_suite_keep_bytecode() -> None:
    assert not sys.dont_write_bytecode
    child = subprocess.run([sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)"], timeout=60)
    assert child.returncode == 0


def test_garbage_is_collected_apart_from_what_collecting_tests_has_made() -> None:
    assert gc.isenabled()
    assert gc.get_threshold() == GC_THRESHOLDS
    assert gc.get_freeze_count() > 10_000
