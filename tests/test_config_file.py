"""`--config FILE`: every option in TOML, checked, below the options of the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from radixrt.cli import _parse, build_parser, main
from radixrt.cli.engines import _options
from radixrt.config import SECTIONS
from radixrt.config.file import read_config_file
from radixrt.errors import ConfigError


def launch(*arguments: str) -> dict[str, Any]:
    return _options(_parse(build_parser(), ["launch", *arguments]))


def written(folder: Path, text: str) -> str:
    file = folder / "radixrt.toml"
    file.write_text(text)
    return str(file)


def test_every_option_can_stand_in_the_file(tmp_path: Path) -> None:
    lines = []
    for title, section in SECTIONS.items():
        lines.append(f"[{title}]")
        for field in dataclasses.fields(section):
            if field.default is not None:
                value = str(field.default).lower() if isinstance(field.default, bool) else repr(field.default)
                lines.append(f"{field.name.replace('_', '-')} = {value}")
    file = written(tmp_path, "\n".join(lines))
    assert len(read_config_file(file)) > 50
    assert launch("--config", file) == launch()


def test_the_command_line_prevails_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'model = "in/file"\nprefix_cache = false\ntp = 2\n[server]\nport = 8000\n')
    options = launch("--config", file, "--tp", "4")
    assert (options["model"], options["prefix_cache"], options["tp"], options["port"]) == ("in/file", False, 4, 8000)
    assert launch("--config", file, "--port", "30000", "--prefix-cache")["port"] == 30000
    assert _parse(build_parser(), ["serve", "given/here", "--config", file]).named_model == "given/here"


def test_options_that_do_not_fit_together_may_be_changed_by_the_command_line(tmp_path: Path) -> None:
    file = written(tmp_path, "kv_cache_tokens = 1000\ncontext_length = 2000\n")
    assert launch("--config", file, "--context-length", "500")["context_length"] == 500


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port = 'x'", "port must be of type int"),
        ("page_size = 0", "page_size must be at least 1"),
        ("max_model_len = 9", "unknown option 'max_model_len'; did you mean context_length?"),
        ("[serverr]\nport = 1", "no section [serverr]; the sections are model, cache"),
        ("[cache]\nport = 1", "port belongs to the section [server], not [cache]"),
        ("port = 1\n[server]\nport = 2", "port is set twice"),
        ("port = ", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(
    text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError):
        read_config_file(file)
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--config", file])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"--config {file}" in said
    assert named in said
    assert said.count("\n") == 1


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config_file(str(tmp_path / "none.toml"))
