"""Other engines' names, and names spelled alike, lead to the option or command that was meant."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from radixrt.cli import COMMANDS
from radixrt.config import SECTIONS, make_config
from radixrt.errors import ConfigError
from radixrt.peer_options import SAME_OPTIONS, SENTENCES, SHORT_OPTIONS, full_name
from radixrt.suggestions import PEER_COMMANDS, about_option, command_meant, option_meant

ROOT = Path(__file__).parents[1]
OPTIONS = {field.name for section in SECTIONS.values() for field in dataclasses.fields(section)}


def test_every_suggestion_exists_and_no_peer_name_is_ours() -> None:
    assert {option for option, _ in SAME_OPTIONS.values()} <= OPTIONS
    assert not set(SAME_OPTIONS) & OPTIONS
    assert set(SHORT_OPTIONS.values()) <= OPTIONS
    assert set(PEER_COMMANDS.values()) <= set(COMMANDS)
    assert not set(PEER_COMMANDS) & set(COMMANDS)


def test_every_sentence_names_options_that_exist() -> None:
    named = {name for _, text in SENTENCES for name in re.findall(r"{(\w+)}", text)}
    assert named <= OPTIONS
    for text in {text for _, text in SENTENCES}:
        for document in re.findall(r"[\w/]+\.md", text):
            assert (ROOT / document).is_file()


def peer_flags() -> list[str]:
    lines = (ROOT / "tests" / "peer_flags.txt").read_text().splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    return [word if word.startswith("-") else f"--{word}" for word in words]


def test_every_flag_of_vllm_and_sglang_is_accepted_or_explained() -> None:
    flags = peer_flags()
    assert len(flags) > 500
    unexplained = []
    for flag in flags:
        name = full_name(flag)
        same = name in OPTIONS or name == "config" or name in SHORT_OPTIONS or name in SAME_OPTIONS
        if not same and not about_option(name, OPTIONS, lambda option, value: option).startswith(": "):
            unexplained.append(flag)
    assert unexplained == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("enable_lora", ": LoRA adapters are not served; merge the adapter into the model"),
        ("gpu_memory_utilization", ": <memory_fraction> is the part of the memory beside the weights for the KV pool, "
         "<kv_cache_tokens> its size"),
        ("limit_mm_per_prompt", ": <max_images> and <max_image_tokens> bound the images of a request, and "
         "<text_only> loads no vision tower; audio and video are not read (docs/vision.md)"),
        ("allowed_host", "; did you mean <allowed_hosts>?"),
        ("load_formt", "; did you mean <load_format>?"),
        ("max_model_len", "; did you mean <context_length>?"),
        ("frobnicate", ""),
    ],
)  # fmt: skip
def test_about_option(name: str, said: str) -> None:
    assert about_option(name, OPTIONS, lambda option, value: f"<{option}>") == said


def test_a_sentence_about_options_that_a_command_lacks_is_not_said() -> None:
    assert about_option("gpu_memory_utilization", {"model", "dtype"}, lambda option, value: option) == ""


def test_fixed_values_are_accepted() -> None:
    for option, value in SAME_OPTIONS.values():
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
    assert option_meant("max_num_seqs", OPTIONS - {"max_running_requests"}) is None


@pytest.mark.parametrize(("name", "meant"), [("start", "launch"), ("lauch", "launch"), ("frobnicate", None)])
def test_command_meant(name: str, meant: str | None) -> None:
    assert command_meant(name, COMMANDS) == meant


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_model_len": 4096}, "unknown option 'max_model_len'; did you mean context_length?"),
        ({"quantize_and_serve": True}, "unknown option 'quantize_and_serve': not needed: the format of the weights"),
        ({"quantization": "bitsandbytes"}, "fp8, int8, int4, not 'bitsandbytes'; the nearest is int4"),
        ({"quantization": "mxfp8"}, "not 'mxfp8'; the nearest is fp8"),
        ({"quantization": "tiny"}, "fp8, int8, int4, not 'tiny'$"),
        ({"enforce_eager": True}, "did you mean cuda_graph='off'?"),
        ({"frobnicate": 1}, "the options are .*page_size"),
    ],
)
def test_the_python_interface_suggests_too(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("?", r"\?")):
        make_config(**options)
