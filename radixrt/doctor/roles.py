"""`RoleLayout`: replicas with roles, as `radixrt launch --roles` would make them on a machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from radixrt.config.roles import Role, check_roles, parse_roles
from radixrt.engine.tier_options import GIB, roles_host_gib
from radixrt.errors import ConfigError


@dataclass(frozen=True)
class RoleLayout:
    """Attributes:
    listed: the value of the option.
    roles: of each replica.
    host_bytes: size of the host tier that each replica gets without `--kv-host-gib`.
    problem: why the layout is refused; empty if it is not.
    """

    listed: str
    roles: tuple[Role, ...] = ()
    host_bytes: int = 0
    problem: str = ""

    @property
    def counts(self) -> str:
        """Number of replicas of each role, in words."""
        return ", ".join(f"{count} {role}" for role, count in Counter(self.roles).items())


def role_layout(listed: str, memory_left: int) -> RoleLayout:
    """Return the layout that a value of `roles` stands for.

    Args:
        memory_left: bytes that processes can still allocate on this machine.
    """
    try:
        roles = parse_roles(listed)
        check_roles(listed, len(roles))
    except ConfigError as error:
        return RoleLayout(listed, problem=str(error))
    host = int(GIB * roles_host_gib(memory_left, len(roles))) if "prefill" in roles else 0
    return RoleLayout(listed, roles, host)
