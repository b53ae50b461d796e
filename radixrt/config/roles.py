"""Roles of replicas: the option `roles`."""

from __future__ import annotations

from typing import Literal, cast, get_args

from radixrt.errors import ConfigError, shown

Role = Literal["both", "prefill", "decode"]
"""Work of a replica; see `radixrt.router.roles`."""


def parse_roles(listed: str | None) -> tuple[Role, ...]:
    """Return the comma-separated roles; none for None.

    Raises:
        ConfigError: a name is no role.
    """
    names = () if listed is None else tuple(name.strip() for name in listed.split(","))
    for name in names:
        if name not in get_args(Role):
            raise ConfigError(
                f"roles must be names separated by commas, each of {', '.join(get_args(Role))}, not {shown(listed)}"
            )
    return cast("tuple[Role, ...]", names)


def check_roles(listed: str | None, replicas: int | None) -> None:
    """Raise ConfigError unless there is a role for each replica, and a replica that answers for each one that only
    computes prompts."""
    if listed is None:
        return
    roles = parse_roles(listed)
    if replicas is None and roles == ("both",):  # as an engine without a router does
        return
    if replicas is None or replicas != len(roles):
        given = "needs replicas" if replicas is None else f"has {len(roles)} roles for replicas={replicas}"
        raise ConfigError(f"roles={shown(listed)} {given}; use replicas={len(roles)}, or one role for each replica")
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            raise ConfigError(
                f"roles={shown(listed)} needs a replica with the role {other} too, or both for all of them"
            )
