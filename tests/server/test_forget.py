"""POST /forget names what the scheduler drops by the namespaces of keys, groups and salts, and is for admins."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixrt.config import ServerConfig
from radixrt.messages.scheduler import ControlReply
from radixrt.server.access.tenants import Tenant
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error


@pytest.mark.parametrize(
    ("body", "op", "namespace"),
    [
        ({"key": "alice"}, "forget_owner", Tenant("alice").namespace("")),
        ({"cache_group": "team"}, "forget_owner", Tenant("x", cache_group="team").namespace("")),
        ({"cache_salt": "s"}, "forget", "s"),
        ({"cache_salt": ""}, "forget", ""),
        ({"key": "alice", "cache_salt": "s"}, "forget", Tenant("alice").namespace("s")),
    ],
)
def test_it_names_the_namespaces(caller: Caller, body: dict[str, str], op: str, namespace: str) -> None:
    answer = caller.post("/forget", body)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    (sent,) = caller.engine.controls
    assert (sent.op, sent.namespace) == (op, namespace)


def test_nothing_and_two_clients_are_refused(caller: Caller) -> None:
    assert "name a key" in check_error(caller.post("/forget", {}), 400, "key", "missing_field")
    both = caller.post("/forget", {"key": "a", "cache_group": "b"})
    assert "not both" in check_error(both, 400, "cache_group", "invalid_value")
    assert not caller.engine.controls


def test_tokens_in_use_are_a_conflict(caller: Caller) -> None:
    caller.engine.control_reply = ControlReply("", ok=False, message="64 tokens are in use and stay")
    assert "64 tokens are in use" in check_error(caller.post("/forget", {"key": "a"}), 409, None, "in_use")


def test_it_needs_the_key_of_an_admin(engine: FakeEngine, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.alice]\nkey = "alices"\n\n[keys.root]\nkey = "roots"\nadmin = true\n')
    keys.chmod(0o600)
    caller = Caller(engine, ServerConfig(api_key_file=str(keys)))
    assert caller.post("/forget", {"key": "alice"}).status_code == 401
    assert caller.post("/forget", {"key": "alice"}, headers={"authorization": "Bearer alices"}).status_code == 403
    assert caller.post("/forget", {"key": "alice"}, headers={"authorization": "Bearer roots"}).status_code == 200
