"""Options: every wrong value is a ConfigError that names the option, and every right one survives flags and JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

import pytest

from radixrt.cli import build_parser
from radixrt.config import SECTIONS, Config, ServerConfig, config_to_dict, field_type, make_config
from radixrt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Option:
    name: str
    section: str
    kind: type
    optional: bool
    choices: tuple[str, ...] | None
    low: float | None
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def other(self) -> Any:
        """A good value that is not the default."""
        if self.kind is bool:
            return not self.default
        if self.choices:
            return next(choice for choice in self.choices if choice != self.default)
        if self.name == "trusted_proxies":
            return "10.0.0.1, fd00::/8"
        if self.name == "decision_temperature":
            return "1.25"
        if self.name == "roles":
            return "both"
        if self.kind is str:
            return "something else"
        if self.name == "max_inflight_steps":
            return 1
        if self.name == "context_length":
            return 30  # a request fits into the pool of kv_cache_tokens
        if self.kind is float:
            return (self.default or 0.0) + 0.25
        return 40 if self.default is None else self.default + 17


OPTIONS = [
    Option(f.name, section, *field_type(cls, f.name), f.metadata["choices"], f.metadata["low"], f.default)
    for section, cls in SECTIONS.items()
    for f in dataclasses.fields(cls)
]
UNBOUNDED = {"max_queue_wait_s", "max_gap_ms"}
"""Options that inf switches off."""
BY_NAME = {o.name: o for o in OPTIONS}
WRONG_TYPES: dict[type, list[Any]] = {
    int: ["3", 3.0, True, [3], b"3"],
    float: ["0.5", True, [0.5], 1j],
    str: [3, b"text", True, ["text"], pathlib.Path],
    bool: [1, 0, "yes", "true", 1.0],
}


def each(options: list[Option]) -> Any:
    return pytest.mark.parametrize("option", options, ids=lambda o: o.name)


def value_of(config: Config, option: Option) -> Any:
    return getattr(getattr(config, option.section), option.name)


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_config(**options)
    message = str(raised.value)
    assert "\n" not in message
    return message


# --- what is refused ---


def test_names_are_unique_across_sections() -> None:
    """Flat options and flags have one home each."""
    assert len(BY_NAME) == len(OPTIONS)


@each(OPTIONS)
def test_a_wrong_type_is_refused_by_name(option: Option) -> None:
    for value in WRONG_TYPES[option.kind]:
        message = refusal(**{option.name: value})
        assert option.name in message
        assert option.kind.__name__ in message
        assert type(value).__name__ in message


@each([o for o in OPTIONS if not o.optional])
def test_none_is_refused_where_there_is_no_default_to_find(option: Option) -> None:
    assert option.name in refusal(**{option.name: None})


@each([o for o in OPTIONS if o.optional])
def test_none_is_taken_where_the_default_is_found_later(option: Option) -> None:
    assert value_of(make_config(**{option.name: None}), option) is None


@each([o for o in OPTIONS if o.choices])
def test_choices(option: Option) -> None:
    assert option.choices is not None
    for choice in option.choices:
        assert value_of(make_config(**{option.name: choice}), option) == choice
    for wrong in ("", option.choices[0].upper(), option.choices[0] + " ", "x" * 500):
        message = refusal(**{option.name: wrong})
        assert option.name in message
        assert all(choice in message for choice in option.choices)
        assert len(message) < 300


@each([o for o in OPTIONS if o.low is not None])
def test_the_lower_bound_is_taken_and_what_is_below_it_refused(option: Option) -> None:
    assert option.low is not None
    low = option.kind(option.low)
    assert value_of(make_config(**{option.name: low}), option) == low
    step = 1 if option.kind is int else 1e-6
    for wrong in (low - step, -(10**9)):
        message = refusal(**{option.name: wrong})
        assert option.name in message
        assert f"{option.low:g}" in message


@each([o for o in OPTIONS if o.kind is int and o.low is not None])
def test_an_integer_of_thousands_of_digits_below_the_bound_is_refused(option: Option) -> None:
    assert option.name in refusal(**{option.name: -(10**5000)})


@each([o for o in OPTIONS if o.kind is float])
def test_a_float_must_be_finite(option: Option) -> None:
    for value in (float("nan"), float("inf"), float("-inf"), 10**400, -(10**5000)):
        if option.name in UNBOUNDED and value == float("inf"):
            config = make_config(**{option.name: value})
            assert value_of(make_config(**json.loads(json.dumps(config_to_dict(config)))), option) == value
            continue
        message = refusal(**{option.name: value})
        assert option.name in message
        assert "finite" in message


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    message = refusal(modle="x")
    assert "'modle'; did you mean model?" in message
    assert all(name in message for name in BY_NAME)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_inflight_steps": 3}, ["max_inflight_steps"]),
        ({"memory_fraction": 0.951}, ["memory_fraction", "0.95"]),
        ({"port": 65536}, ["port", "65535"]),
        ({"kv_cache_tokens": 15, "page_size": 16}, ["kv_cache_tokens", "page_size"]),
        ({"random_seed": 2**63}, ["random_seed", "64"]),
        ({"random_seed": -(2**63) - 1}, ["random_seed", "64"]),
    ],
)
def test_upper_bounds_and_what_must_fit_together(options: dict[str, Any], named: list[str]) -> None:
    message = refusal(**options)
    assert all(name in message for name in named)


@pytest.mark.parametrize(
    "options",
    [
        {"max_inflight_steps": 2},
        {"memory_fraction": 0.95},
        {"port": 65535},
        {"kv_cache_tokens": 16, "page_size": 16},
        {"random_seed": 2**63 - 1},
        {"random_seed": -(2**63)},
    ],
)
def test_the_bounds_themselves_are_taken(options: dict[str, Any]) -> None:
    flat = config_to_dict(make_config(**options))
    assert {name: flat[name] for name in options} == options


# --- what is taken ---


def test_no_options_are_the_defaults() -> None:
    assert make_config() == Config()
    assert make_config(**{o.name: o.default for o in OPTIONS}) == Config()


@each(OPTIONS)
def test_an_option_lands_in_its_own_field_alone(option: Option) -> None:
    flat = config_to_dict(make_config(**{option.name: option.other()}))
    assert flat == config_to_dict(Config()) | {option.name: option.other()}


def test_a_path_becomes_a_string_and_an_integer_a_float(tmp_path: pathlib.Path) -> None:
    config = make_config(model=tmp_path, chat_template=tmp_path / "x", step_timeout_s=3)
    assert config.model.model == str(tmp_path)
    assert config.model.chat_template == str(tmp_path / "x")
    assert type(config.executor.step_timeout_s) is float


def test_a_config_cannot_be_changed() -> None:
    config = make_config()
    for section in SECTIONS:
        first = dataclasses.fields(SECTIONS[section])[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(getattr(config, section), first, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model = SECTIONS["model"]()  # type: ignore[misc]


TOGETHER = [option for option in OPTIONS if option.name not in ("skip_tokenizer_init", "replicas")]
"""Options that all go together: without a tokenizer, those that configure one are refused, and replicas are processes
that only executor=mp starts."""


def test_a_config_crosses_to_the_workers_as_json() -> None:
    config = make_config(**{o.name: o.other() for o in TOGETHER})
    assert make_config(**json.loads(json.dumps(config_to_dict(config), allow_nan=False))) == config


# --- flags ---


def flags_for(options: list[Option]) -> list[str]:
    out = []
    for option in options:
        if option.kind is bool:
            out.append(option.flag if option.other() else option.flag.replace("--", "--no-", 1))
        else:
            out += [option.flag, str(option.other())]
    return out


def parsed(arguments: list[str]) -> dict[str, Any]:
    values = vars(build_parser().parse_args(arguments))
    return {name: value for name, value in values.items() if name in BY_NAME}


def test_launch_without_flags_is_the_default_config() -> None:
    assert make_config(**parsed(["launch"])) == Config()


@each(OPTIONS)
def test_each_field_has_a_flag_of_launch(option: Option) -> None:
    config = make_config(**parsed(["launch", *flags_for([option])]))
    assert config == make_config(**{option.name: option.other()})


def test_all_flags_at_once_through_json_and_back() -> None:
    config = make_config(**parsed(["launch", *flags_for(TOGETHER)]))
    assert config == make_config(**{o.name: o.other() for o in TOGETHER})
    assert make_config(**config_to_dict(config)) == config


def test_generate_takes_every_flag_but_the_servers() -> None:
    theirs = {f.name for f in dataclasses.fields(ServerConfig)}
    ours = [o for o in OPTIONS if o.name not in theirs]
    arguments = ["generate", "hello", *flags_for(ours)]
    assert parsed(arguments) == {o.name: o.other() for o in ours}


@each(OPTIONS)
def test_the_help_of_a_flag_has_its_text_and_default(option: Option, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    text = SECTIONS[option.section].__dataclass_fields__[option.name].metadata["help"]
    flags_and_texts = " ".join(commands.choices["launch"].format_help().split())
    assert f" {option.flag} " in flags_and_texts.replace(",", "")
    assert f"{text} (default: {option.default})" in flags_and_texts


def test_a_configured_pool_must_hold_the_configured_context() -> None:
    message = refusal(kv_cache_tokens=100, context_length=97, page_size=16)
    assert all(part in message for part in ("kv_cache_tokens=100", "context_length=97", "leave context_length out"))
    make_config(kv_cache_tokens=100, context_length=96, page_size=16)
    make_config(kv_cache_tokens=100, page_size=16)
