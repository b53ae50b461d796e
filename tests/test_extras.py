"""Commands that errors name for missing packages, and the lines of the documents that install radixrt."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from radixrt._version import __version__
from radixrt.extras import install_command

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs/cuda.md", ROOT / "docs/ray.md", ROOT / "deploy/radixrt.service")


@pytest.mark.parametrize("extra", ["server", "otel", "ray", "cuda"])
def test_a_command_names_the_packages_of_an_extra(extra: str) -> None:
    command = install_command(extra)
    assert command.startswith("pip install '")
    packages = [re.split("[<>=]", name)[0] for name in re.findall(r"'([^']+)'", command)]
    assert sorted(packages) == sorted(re.split("[<>=]", each)[0] for each in EXTRAS[extra])


def test_a_command_where_radixrt_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert install_command("ray") == "pip install '.[ray]' in the folder of radixrt's source"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_install_the_wheel_of_this_version_with_extras_that_exist(document: Path) -> None:
    installed = re.findall(r"(\S*radixrt[^\s\]]*)\[([\w,]+)\]", document.read_text())
    assert installed
    for what, extras in installed:
        assert "/" in what, f"{what}: radixrt is on no package index"
        assert set(extras.split(",")) <= set(EXTRAS)
        assert "*" in what or "whl" not in what or f"radixrt-{__version__}-py3-none-linux_x86_64.whl" in what
