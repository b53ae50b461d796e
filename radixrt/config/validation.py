"""`make_config` builds a `Config` from flat options, and checks single options and options that must fit together."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import typing
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from radixrt.config.roles import check_roles
from radixrt.config.sections import HOMES, SECTIONS, Config
from radixrt.errors import ConfigError, shown
from radixrt.peer_options import nearest_value, same_value
from radixrt.suggestions import about_option

DECISION_TEMPERATURES = (0.01, 100.0)
"""Lowest and highest temperature of decisions."""


def field_type(section: type, name: str) -> tuple[type, bool]:
    """Return the type of a section's field without None, and whether None is allowed."""
    hint = typing.get_type_hints(section)[name]
    args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    return (args[0], True) if args else (hint, False)


def make_config(**options: Any) -> Config:
    """Build a Config from flat options, e.g. `make_config(model="path", page_size=16)`.

    Raises:
        ConfigError: unknown option, wrong type, or value out of bounds; the message names the option and the allowed
            values.
    """
    chosen: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in checked_options(options).items():
        chosen[HOMES[name]][name] = value
    config = Config(**{section: cls(**chosen[section]) for section, cls in SECTIONS.items()})
    _check_together(config)
    # A file is read here alone: processes that start later, also without the file, get the number.
    temperature = parse_decision_temperature(config.server.decision_temperature)
    server = dataclasses.replace(config.server, decision_temperature=repr(temperature))
    return dataclasses.replace(config, server=server)


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return flat options, each of which is checked by itself, with values of the types of the sections' fields.

    Raises:
        ConfigError: as `make_config`.
    """
    for name in options:
        if name not in HOMES:
            known = sorted(HOMES)
            about = about_option(name, known, _spelled)
            raise ConfigError(
                f"unknown option {name!r}{about}{'' if about.endswith('?') else ';'} the options are {', '.join(known)}"
            )
    return {name: _checked(SECTIONS[HOMES[name]], name, value) for name, value in options.items()}


def _spelled(option: str, value: object) -> str:
    return option if value is None else f"{option}={value!r}"


def _checked(section: type, name: str, value: Any) -> Any:
    kind, optional = field_type(section, name)
    meta = section.__dataclass_fields__[name].metadata  # type: ignore[attr-defined]
    if value is None and optional:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise ConfigError(f"{name} must be a finite number, not {shown(value)}") from None
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    value = same_value(name, value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")
    if meta["choices"] and value not in meta["choices"]:
        raise ConfigError(
            f"{name} must be one of {', '.join(meta['choices'])}, not {shown(value)}{nearest_value(name, value)}"
        )
    if isinstance(value, float) and not math.isfinite(value) and not (meta["unbounded"] and value == math.inf):
        raise ConfigError(f"{name} must be a finite number, not {value}")
    if meta["low"] is not None and not value >= meta["low"]:
        raise ConfigError(f"{name} must be at least {meta['low']:g}, not {shown(value)}")
    return value


def _check_together(config: Config) -> None:
    if config.scheduler.max_inflight_steps > 2:
        raise ConfigError("max_inflight_steps must be 1 or 2")
    if config.cache.memory_fraction > 0.95:
        raise ConfigError("memory_fraction must be at most 0.95")
    if not -(2**63) <= config.executor.random_seed < 2**63:
        raise ConfigError("random_seed must fit in 64 bits")
    for name in ("tp", "pp"):
        ranks = getattr(config.executor, name)
        if ranks > 1 and config.executor.executor == "uni":
            raise ConfigError(
                f"{name}={ranks} needs a process for each rank, and executor=uni has one in all; use executor=mp"
            )
    if config.executor.replicas is not None and config.executor.executor not in ("mp", "ray"):
        raise ConfigError(
            f"replicas={config.executor.replicas} needs processes that this engine starts; use executor=mp or ray, not "
            f"{config.executor.executor}"
        )
    check_roles(config.executor.roles, config.executor.replicas)
    for name in ("tokenizer", "chat_template", "score_template"):
        if config.model.skip_tokenizer_init and getattr(config.model, name) is not None:
            raise ConfigError(f"{name} is of no use with skip_tokenizer_init; leave one of them out")
    parse_names(config.model.served_model_name)
    if config.server.port > 65535:
        raise ConfigError("port must be at most 65535")
    parse_networks(config.server.trusted_proxies, "trusted_proxies")
    if config.cache.kv_cache_tokens is not None and config.cache.kv_cache_tokens < config.cache.page_size:
        raise ConfigError("kv_cache_tokens must hold at least one page (page_size)")
    pool, context = config.cache.kv_cache_tokens, config.model.context_length
    if pool is not None and context is not None and pool // config.cache.page_size * config.cache.page_size < context:
        raise ConfigError(
            f"kv_cache_tokens={pool} holds less than one request of context_length={context}; raise kv_cache_tokens,"
            " lower context_length, or leave context_length out: the pool then bounds requests"
        )


def parse_names(listed: str | None) -> tuple[str, ...]:
    """Return the comma-separated names of `served_model_name`; none for None.

    Raises:
        ConfigError: a name is empty.
    """
    names = () if listed is None else tuple(name.strip() for name in listed.split(","))
    if not all(names):
        raise ConfigError(f"served_model_name must be names separated by commas, none empty, not {shown(listed)}")
    return tuple(dict.fromkeys(names))


def parse_decision_temperature(given: str) -> float:
    """Return the value of `decision_temperature`: a number, or the member `temperature` of a JSON file.

    Raises:
        ConfigError: neither, or a temperature out of DECISION_TEMPERATURES.
    """
    low, high = DECISION_TEMPERATURES
    try:
        value: Any = float(given)
    except ValueError:
        try:
            found = json.loads(Path(given).expanduser().read_text())
        except OSError as error:
            raise ConfigError(
                f"decision_temperature {shown(given)} is neither a number nor a file that can be read: {error.strerror}"
            ) from None
        except ValueError:
            raise ConfigError(f"decision_temperature {shown(given)} is not a file of `radixrt calibrate`") from None
        value = found.get("temperature") if isinstance(found, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"decision_temperature must be between {low:g} and {high:g}, not {shown(value)}")
    return float(value)


def parse_networks(listed: str, name: str) -> list[IPv4Network | IPv6Network]:
    """Parse comma-separated addresses and networks.

    Args:
        name: name of the option, for errors.

    Raises:
        ConfigError: a part is neither an address nor a network.
    """
    networks: list[IPv4Network | IPv6Network] = []
    for text in filter(None, (part.strip() for part in listed.split(","))):
        try:
            networks.append(ip_network(text, strict=False))
        except ValueError:
            raise ConfigError(
                f"{name} holds {shown(text)}, which is neither an address nor a network such as 10.0.0.0/8"
            ) from None
    return networks


def config_to_dict(config: Config) -> dict[str, Any]:
    """Convert to flat options of plain JSON types, from which `make_config` creates an equal Config."""
    flat: dict[str, Any] = {}
    for section in SECTIONS:
        flat.update(dataclasses.asdict(getattr(config, section)))
    return flat
