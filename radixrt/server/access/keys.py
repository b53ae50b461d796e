"""API keys: from a file with several keys, and the one of `--api-key`.

The file is TOML, with a table for each key, by its name:

    [keys.alice]
    key = "..."                     # or sha256 = "...", the hexadecimal digest of the key; or a list of either
    admin = false                   # may use the routes of operators
    cache_group = "team"            # shares the radix cache with the other keys of the group
    max_requests = 16               # open requests of the engine
    tokens_per_minute = 100_000     # prompt and output tokens
    tokens_per_day = 5_000_000      # the same, for a day of UTC
    weight = 1                      # share of the engine while requests of several keys wait

All but the key are optional; without a limit there is none. A list has the keys of one client, the new and
the old one, while its key is replaced. Names go into logs and metrics, keys never do.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any

import msgspec

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server.access.tenants import EVERYONE, NOBODY, Tenant
from radixrt.suggestions import similar

logger = logging.getLogger(__name__)

API_KEY_VARIABLE = "RADIXRT_API_KEY"
SINGLE_KEY_NAME = "default"
"""Name of the key of `--api-key`."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]{1,512}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

MAX_SECRETS = 8
"""Longest list of keys of one client."""

_Limit = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Weight = Annotated[float, msgspec.Meta(ge=0.001, le=1000)]


class _Entry(msgspec.Struct, kw_only=True):
    key: str | list[str] | None = None
    sha256: str | list[str] | None = None
    admin: bool = False
    cache_group: str | None = None
    max_requests: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    tokens_per_day: _Limit | None = None
    weight: _Weight = 1.0


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, Any]


_Known = tuple[tuple[bytes, Tenant], ...]
"""SHA-256 digests of the keys, and whom they stand for."""


class KeyRing:
    """The keys of one server. Without any, every client is `EVERYONE`.

    Raises:
        ConfigError: the key file cannot be read, or is not valid; names the entry.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._path = config.api_key_file
        self._single = config.api_key or os.environ.get(API_KEY_VARIABLE)
        self._known = self._read()

    def reload(self) -> None:
        """Read the file again; if it is not valid, the keys stay as they are.

        Raises:
            ConfigError: as the constructor.
        """
        if self._path is not None:
            check_is_file(Path(self._path), "--api-key-file")
        self._known = self._read()
        logger.info("API keys reloaded: %s", ", ".join(dict.fromkeys(tenant.name for _, tenant in self._known)))

    @property
    def has_keys(self) -> bool:
        """True if requests need a key."""
        return bool(self._known)

    def identify(self, authorization: bytes, api_key: bytes = b"") -> Tenant:
        """Return the tenant whose key a request carries; `NOBODY` if it carries none that is known.

        The token is compared with every key, by digests and in constant time, so that the time taken says nothing about
        a key.

        Args:
            authorization: value of the header Authorization; a bearer's token counts.
            api_key: value of the header x-api-key, which Anthropic's clients send; it counts if there is no such token.
        """
        if not self._known:
            return EVERYONE
        scheme, _, token = authorization.partition(b" ")
        token = token.strip() if scheme.lower() == b"bearer" else api_key.strip()
        if not token:
            return NOBODY
        digest = hashlib.sha256(token).digest()
        found = NOBODY
        for known, tenant in self._known:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def _read(self) -> _Known:
        known = [] if self._path is None else read_key_file(Path(self._path))
        if self._single:
            if any(tenant.name == SINGLE_KEY_NAME for _, tenant in known):
                raise ConfigError(
                    f"{self._path}: {SINGLE_KEY_NAME!r} is the name of --api-key ({API_KEY_VARIABLE}); choose another"
                )
            known.append((_digest_of(self._single), Tenant(SINGLE_KEY_NAME, is_admin=True)))
        return tuple(known)


def read_key_file(path: Path) -> list[tuple[bytes, Tenant]]:
    """Read a key file: the digest of each key, and its tenant. Warns if others can read the file.

    Raises:
        ConfigError: the file cannot be read, or is not valid; names the entry. The text holds no key.
    """
    data = read_private_file(path, "--api-key-file")
    try:
        entries = msgspec.toml.decode(data, type=_File).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {path}: {error}") from None
    if not entries:
        raise ConfigError(f"--api-key-file {path}: it has no keys; write a table [keys.NAME] for each client")
    known: dict[bytes, Tenant] = {}
    for name, fields in entries.items():
        where = f"--api-key-file {path}: [keys.{name[:80]}]"
        entry = _entry(fields, where)
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: a name is 1 to 64 letters, digits and any of . _ -")
        if entry.cache_group is not None and not _NAME.fullmatch(entry.cache_group):
            raise ConfigError(f"{where}: cache_group must be 1 to 64 letters, digits and any of . _ -")
        tenant = Tenant(
            name,
            entry.admin,
            entry.cache_group,
            entry.max_requests,
            entry.tokens_per_minute,
            entry.tokens_per_day,
            entry.weight,
        )
        for digest in _entry_digests(entry, where):
            if digest in known:
                raise ConfigError(f"{where}: the key is that of {known[digest].name}; each needs its own")
            known[digest] = tenant
    return list(known.items())


def _entry(fields: Any, where: str) -> _Entry:
    """Return the checked fields of a key's table; the error names the field, and one that is spelled alike."""
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}: it must be a table with the field key or sha256")
    for name in fields:
        if name not in _Entry.__struct_fields__:
            close = similar(name, _Entry.__struct_fields__)
            meant = f"; did you mean {close}?" if close else f"; there are {', '.join(_Entry.__struct_fields__)}"
            raise ConfigError(f"{where}: unknown field {name[:80]!r}{meant}")
    try:
        return msgspec.convert(fields, _Entry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace('`$.', '`')}") from None


def _entry_digests(entry: _Entry, where: str) -> list[bytes]:
    if (entry.key is None) == (entry.sha256 is None):
        raise ConfigError(f"{where}: exactly one of key and sha256 is needed")
    given = entry.sha256 if entry.key is None else entry.key
    secrets = given if isinstance(given, list) else [given or ""]
    if not 1 <= len(secrets) <= MAX_SECRETS:
        raise ConfigError(f"{where}: a list has 1 to {MAX_SECRETS} keys, not {len(secrets)}")
    if entry.key is None:
        if not all(map(_DIGEST.fullmatch, secrets)):
            raise ConfigError(f"{where}: sha256 must be 64 hexadecimal digits")
        return [bytes.fromhex(secret) for secret in secrets]
    if not all(map(_KEY.fullmatch, secrets)):
        raise ConfigError(f"{where}: a key is 1 to 512 printable ASCII characters without spaces")
    return [_digest_of(secret) for secret in secrets]


def _digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_is_file(path: Path, option: str) -> None:
    """Check that reading a path a second time cannot wait, as reading a pipe would, for somebody who writes to it.

    Raises:
        ConfigError: there is no such file, or it is not a regular file; names the option.
    """
    if not path.is_file():
        raise ConfigError(f"{option} {path} is not a regular file; only a file can be read again")


def read_private_file(path: Path, option: str) -> bytes:
    """Read a file that holds secrets; warns if every user of the machine can read it.

    Raises:
        ConfigError: it cannot be read; names the option.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror or error}") from None
    if mode & stat.S_IROTH:
        logger.warning("%s %s can be read by every user of this machine; chmod 600 %s", option, path, path)
    return data
