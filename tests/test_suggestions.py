"""Other engines' names, and names spelled alike, lead to the option or command that was meant."""

from __future__ import annotations

import dataclasses

import pytest

from radixrt.cli import COMMANDS
from radixrt.config import SECTIONS, make_config
from radixrt.errors import ConfigError
from radixrt.suggestions import PEER_COMMANDS, PEER_OPTIONS, command_meant, option_meant

OPTIONS = {field.name for section in SECTIONS.values() for field in dataclasses.fields(section)}


def test_every_suggestion_exists_and_no_peer_name_is_ours() -> None:
    assert {option for option, _ in PEER_OPTIONS.values()} <= OPTIONS
    assert not set(PEER_OPTIONS) & OPTIONS
    assert set(PEER_COMMANDS.values()) <= set(COMMANDS)
    assert not set(PEER_COMMANDS) & set(COMMANDS)


def test_fixed_values_are_accepted() -> None:
    for option, value in PEER_OPTIONS.values():
        if value is not None:
            make_config(**{option: value})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_model_len", ("context_length", None)),
        ("max_model_length", ("context_length", None)),
        ("tensor_paralel_size", ("tp", None)),
        ("disable_radix_cache", ("prefix_cache", False)),
        ("contxt_length", ("context_length", None)),
        ("page_sizes", ("page_size", None)),
        ("no_such_flag", None),
        ("x", None),
    ],
)
def test_option_meant(name: str, meant: tuple[str, object] | None) -> None:
    assert option_meant(name, OPTIONS) == meant


def test_an_option_that_this_command_lacks_is_not_suggested() -> None:
    assert option_meant("allowed_origins", OPTIONS - {"cors_origins", "allowed_hosts"}) is None


@pytest.mark.parametrize(("name", "meant"), [("serve", "launch"), ("lauch", "launch"), ("frobnicate", None)])
def test_command_meant(name: str, meant: str | None) -> None:
    assert command_meant(name, COMMANDS) == meant


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_model_len": 4096}, "unknown option 'max_model_len'; did you mean context_length?"),
        ({"enforce_eager": True}, "did you mean cuda_graph='off'?"),
        ({"frobnicate": 1}, "the options are .*page_size"),
    ],
)
def test_the_python_interface_suggests_too(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("?", r"\?")):
        make_config(**options)
