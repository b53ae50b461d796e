"""API keys: the file, who is who, and what each may do."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

import pytest

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.messages.client import RequestOutput
from radixrt.messages.scheduler import ReleaseReq
from radixrt.server.access.checks import ADMIN_PATHS, OPEN_FILES, OPEN_PATHS
from radixrt.server.access.keys import KeyRing
from radixrt.server.access.tenants import EVERYONE, NOBODY, Tenant
from radixrt.server.routes.table import ROUTES
from tests.server.fake_engine import FakeEngine, Sent
from tests.server.helpers import Caller, check_error, events
from tests.server_process import without_model

KEYS = f"""
[keys.alice]
key = "sk-alice"
max_requests = 2
tokens_per_minute = 1000
weight = 2.5

[keys.bob]
sha256 = "{hashlib.sha256(b"sk-bob").hexdigest()}"
cache_group = "team"

[keys.operator]
key = "sk-operator"
admin = true
"""
ALICE, BOB, OPERATOR = ({"Authorization": f"Bearer sk-{name}"} for name in ("alice", "bob", "operator"))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


@pytest.fixture
def keyed(engine: FakeEngine, key_file: Path) -> Caller:
    return Caller(engine, ServerConfig(api_key_file=str(key_file)))


def chat(caller: Caller, key: dict[str, str], **fields: object):
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return caller.post("/v1/chat/completions", body, headers=key)


# --- the file ---


def test_each_key_is_its_own_tenant(key_file: Path) -> None:
    ring = KeyRing(ServerConfig(api_key_file=str(key_file), api_key="sk-single"))
    assert ring.identify(b"Bearer sk-alice") == Tenant("alice", max_requests=2, tokens_per_minute=1000, weight=2.5)
    assert ring.identify(b"bearer  sk-bob ") == Tenant("bob", cache_group="team")
    assert ring.identify(b"Bearer sk-operator") == Tenant("operator", is_admin=True)
    assert ring.identify(b"Bearer sk-single") == Tenant("default", is_admin=True)
    for wrong in (b"", b"Bearer", b"Bearer ", b"Bearer sk-alic", b"Bearer sk-alice1", b"Basic sk-alice", b"sk-alice"):
        assert ring.identify(wrong) == NOBODY


def test_key_of_anthropics_clients(key_file: Path) -> None:
    ring = KeyRing(ServerConfig(api_key_file=str(key_file)))
    assert ring.identify(b"", b" sk-bob ").name == "bob"
    assert ring.identify(b"Basic cHJveHk=", b"sk-bob").name == "bob"
    assert ring.identify(b"Bearer sk-alice", b"sk-bob").name == "alice"
    for authorization, key in ((b"Bearer wrong", b"sk-bob"), (b"", b"wrong"), (b"", b""), (b"", b"Bearer sk-bob")):
        assert ring.identify(authorization, key) == NOBODY


def test_a_client_has_two_keys_while_one_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.toml"
    old = hashlib.sha256(b"sk-old").hexdigest()
    path.write_text(f'[keys.alice]\nkey = ["sk-new", "sk-old"]\n[keys.bob]\nsha256 = ["{"0" * 64}", "{old[::-1]}"]')
    ring = KeyRing(ServerConfig(api_key_file=str(path)))
    assert ring.identify(b"Bearer sk-new") is ring.identify(b"Bearer sk-old")
    assert ring.identify(b"Bearer sk-new").name == "alice"
    path.write_text('[keys.alice]\nkey = "sk-new"')
    with caplog.at_level(logging.INFO):
        ring.reload()
    assert ring.identify(b"Bearer sk-new").name == "alice"
    assert ring.identify(b"Bearer sk-old") == NOBODY
    assert "API keys reloaded: alice\n" in caplog.text + "\n"


def test_without_keys_everyone_is_served() -> None:
    assert KeyRing(ServerConfig()).identify(b"Bearer anything") == EVERYONE


def test_single_key_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXRT_API_KEY", "sk-env")
    ring = KeyRing(ServerConfig())
    assert ring.identify(b"Bearer sk-env") == Tenant("default", is_admin=True)
    assert ring.identify(b"Bearer other") == NOBODY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "keys"),
        ("[keys]", "it has no keys"),
        ("keys = 1", "keys"),
        ("[keys.a]", r"\[keys.a\]: exactly one of key and sha256"),
        ('[keys.a]\nkey = "SECRET"\nsha256 = "SECRET"', "exactly one of key and sha256"),
        ('[keys.a]\nkey = ""', "1 to 512 printable"),
        ('[keys.a]\nkey = "SECRET 1"', "1 to 512 printable"),
        ('[keys.a]\nsha256 = "SECRET"', "64 hexadecimal digits"),
        (
            '[keys.a]\nkey = "SECRET"\nmax_request = 1',
            r"\[keys.a\]: unknown field 'max_request'; did you mean max_requests",
        ),
        ('[keys.a]\nkey = "SECRET"\nowner = "SECRET"', r"\[keys.a\]: unknown field 'owner'; there are key, sha256"),
        ('[keys]\na = "SECRET"', r"\[keys.a\]: it must be a table"),
        ("[keys.a]\nkey = []", r"\[keys.a\]: a list has 1 to 8 keys, not 0"),
        ('[keys.a]\nkey = ["SECRET", "SECRET"]', r"\[keys.a\]: the key is that of a"),
        ('[keys.a]\nkey = ["SECRET", 1]', r"\[keys.a\]: .*key"),
        ('[keys.a]\nkey = "SECRET"\ntokens_per_day = 0', r"\[keys.a\]: .*tokens_per_day"),
        ('[keys.a]\nkey = "SECRET"\nmax_requests = 0', r"\[keys.a\]: .*max_requests"),
        ('[keys.a]\nkey = "SECRET"\nweight = 0', r"\[keys.a\]: .*weight"),
        ('[keys.a]\nkey = "SECRET"\ntokens_per_minute = 1.5', r"\[keys.a\]: .*tokens_per_minute"),
        ('[keys.a]\nkey = "SECRET"\nadmin = "SECRET"', "admin"),
        ('[keys."a b"]\nkey = "SECRET"', "a name is 1 to 64"),
        ('[keys.a]\nkey = "SECRET"\ncache_group = "a b"', "cache_group"),
        ('[keys.a]\nkey = "SECRET"\n[keys.b]\nkey = "SECRET"', r"\[keys.b\]: the key is that of a"),
        ('[keys.a]\nkey = "SECRET', "at end of document"),
    ],
)
def test_file_that_is_not_valid_is_refused_by_place_without_its_secrets(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        KeyRing(ServerConfig(api_key_file=str(path)))
    assert str(path) in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_file_that_is_missing_or_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing(ServerConfig(api_key_file=str(path)))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"keys\.toml"):
        KeyRing(ServerConfig(api_key_file=str(path)))


def test_name_of_the_single_key_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[keys.default]\nkey = "a"')
    with pytest.raises(ConfigError, match="choose another"):
        KeyRing(ServerConfig(api_key_file=str(path), api_key="b"))


def test_file_that_everyone_can_read_is_warned_about(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeyRing(ServerConfig(api_key_file=str(key_file)))
    assert not caplog.records
    key_file.chmod(0o644)
    KeyRing(ServerConfig(api_key_file=str(key_file)))
    assert "chmod 600" in caplog.text


def test_reload_does_not_wait_for_the_writer_of_a_pipe(key_file: Path) -> None:
    ring = KeyRing(ServerConfig(api_key_file=str(key_file)))
    key_file.unlink()
    os.mkfifo(key_file)
    with pytest.raises(ConfigError, match=r"--api-key-file .* is not a regular file"):
        ring.reload()
    assert ring.has_keys


def test_reload_takes_a_valid_file_and_keeps_the_keys_otherwise(key_file: Path) -> None:
    ring = KeyRing(ServerConfig(api_key_file=str(key_file)))
    key_file.write_text("[keys.carol]\n")
    with pytest.raises(ConfigError):
        ring.reload()
    assert ring.identify(b"Bearer sk-alice").name == "alice"
    key_file.write_text('[keys.carol]\nkey = "sk-carol"')
    ring.reload()
    assert ring.identify(b"Bearer sk-alice") == NOBODY
    assert ring.identify(b"Bearer sk-carol").name == "carol"


# --- access ---


WITH_METHODS = [
    (route.method if path != "/ui/events" else "HEAD", path)  # a GET never ends
    for route in ROUTES
    for path in route.paths
]


@pytest.mark.parametrize(("method", "path"), WITH_METHODS)
def test_each_route_needs_a_key_unless_it_is_open(keyed: Caller, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = keyed.request(method, path.replace("{model:path}", "fake"), headers=headers)
        is_open = path in OPEN_PATHS or path == f"{OPEN_FILES}{{file}}"
        assert (response.status_code == 401) == (not is_open), response.text
        if method == "HEAD":
            continue
        if response.status_code == 401 and path.startswith("/v1/messages"):
            assert response.json()["error"]["type"] == "authentication_error"
        elif response.status_code == 401:
            check_error(response, 401, code="invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
    response = keyed.request(method, path.replace("{model:path}", "fake"), headers=ALICE)
    assert (response.status_code == 403) == (path in ADMIN_PATHS)
    assert keyed.request(method, path.replace("{model:path}", "fake"), headers=OPERATOR).status_code not in (401, 403)


def test_key_in_x_api_key(keyed: Caller) -> None:
    assert keyed.get("/v1/models", headers={"x-api-key": "sk-bob"}).status_code == 200
    refused = keyed.get("/v1/models", headers={"x-api-key": "wrong"})
    assert "'x-api-key: KEY'" in check_error(refused, 401, code="invalid_api_key")


def test_aborting_all_needs_an_admin(keyed: Caller) -> None:
    check_error(keyed.post("/abort", {"abort_all": True}, headers=ALICE), 403, code="admin_key_required")
    assert keyed.post("/abort", {"abort_all": True}, headers=OPERATOR).json() == {"aborted": 0}


def test_unknown_path_needs_a_key_too(keyed: Caller) -> None:
    check_error(keyed.get("/unknown"), 401)
    check_error(keyed.get("/unknown", headers=ALICE), 404)


def test_the_description_needs_no_key(keyed: Caller) -> None:
    """A browser has none to send with an address; the description says no more than radixrt's source."""
    for path in ("/docs", "/docs/page.js", "/docs/page.css", "/openapi.json"):
        assert keyed.get(path).status_code == 200
    check_error(keyed.get("/docs/other"), 401)
    paths = keyed.get("/openapi.json").json()["paths"]
    assert paths["/v1/chat/completions"]["post"]["security"] == [{"bearer": []}, {"key": []}]
    assert paths["/health"]["get"]["security"] == paths["/docs"]["get"]["security"] == []


# --- isolation ---


def test_requests_carry_the_namespace_of_their_key(keyed: Caller) -> None:
    for key in (ALICE, BOB):
        assert chat(keyed, key, cache_salt="s").status_code == 200
    body = {"text": "x", "choices": ["a", "b"], "cache_salt": "s", "program": {"id": "p"}}
    assert keyed.post("/v1/decisions", body, headers=ALICE).status_code == 200
    assert [request.cache_salt for request in keyed.engine.requests] == ["k5:alices", "g4:teams"]
    (question,) = keyed.engine.questions
    assert (question.cache_salt, question.program.program) == ("k5:alices", "5:alicep")


def test_program_of_another_key_is_out_of_reach(keyed: Caller) -> None:
    for key in (ALICE, BOB):
        body = {"text": "x", "program": {"id": "p", "branch": "b"}}
        assert keyed.post("/generate", body, headers=key).status_code == 200
        assert keyed.post("/release", {"program": "p", "branch": "b"}, headers=key).status_code == 200
    programs = [request.program.program for request in keyed.engine.requests]
    assert programs == ["5:alicep", "3:bobp"]
    keyed.engine.wait_for(lambda: len(keyed.engine.released) == 2)
    assert keyed.engine.released == [ReleaseReq("5:alicep", "b"), ReleaseReq("3:bobp", "b")]


def test_same_rid_of_two_keys_neither_collides_nor_can_be_aborted(keyed: Caller) -> None:
    answers: list[object] = []

    def script(request: Sent):
        yield RequestOutput(request.rid, "first")
        if request.cache_salt == "k5:alice":  # while Alice's runs, Bob tries
            answers.append(keyed.post("/abort", {"rid": "r"}, headers=BOB).json())
            answers.append(keyed.post("/abort", {"rid": "chatcmpl-r"}, headers=BOB).json())
            answers.append(chat(keyed, ALICE, rid="r").status_code)
            answers.append(chat(keyed, BOB, rid="r").status_code)
            answers.append(keyed.post("/abort", {"rid": "r"}, headers=ALICE).json())
        yield from plain(request)

    plain = keyed.engine.script
    keyed.engine.script = script
    assert events(chat(keyed, ALICE, rid="r", stream=True))
    keyed.engine.wait_for(lambda: len(answers) == 5)
    assert answers == [{"aborted": 0}, {"aborted": 0}, 400, 200, {"aborted": 1}]
    assert len({request.rid for request in keyed.engine.requests}) == 2


def test_admin_aborts_another_keys_request(keyed: Caller) -> None:
    def script(request: Sent):
        yield RequestOutput(request.rid, "first")
        assert keyed.post("/abort", {"rid": "r"}, headers=OPERATOR).json() == {"aborted": 1}
        yield 60.0

    keyed.engine.script = script
    assert events(chat(keyed, ALICE, rid="r", stream=True))
    assert len(keyed.engine.aborted) == 1


# --- limits and their traces ---


def test_limits_are_429_with_retry_after(keyed: Caller) -> None:
    statuses: list[int] = []

    def script(request: Sent):
        yield RequestOutput(request.rid, "first")
        if len(statuses) < 1:
            statuses.append(0)
            statuses.append(int(chat(keyed, ALICE).headers["x-ratelimit-remaining-requests"]))  # one of two is open
            statuses.append(chat(keyed, ALICE, n=2).status_code)
            statuses.append(chat(keyed, BOB, n=2).status_code)
        yield from plain(request)

    plain = keyed.engine.script
    keyed.engine.script = script
    assert events(chat(keyed, ALICE, stream=True))
    assert statuses == [0, 1, 429, 200]
    check_error(chat(keyed, ALICE, n=3), 400, code="key_limit")

    account = keyed.app.state.service.accounts.by_name["alice"]
    keyed.engine.wait_for(lambda: account.in_flight == 0)
    account._bucket.take(10_000, 1000, account._clock())
    response = chat(keyed, ALICE)
    message = check_error(response, 429, code="rate_limit_exceeded")
    wait_s = int(response.headers["retry-after"])
    assert f"1000 tokens a minute; try again in {wait_s} s" in message
    assert wait_s > 60
    assert response.headers["x-ratelimit-limit-tokens"] == "1000"
    assert response.headers["x-ratelimit-remaining-tokens"] == "0"
    assert wait_s < int(response.headers["x-ratelimit-reset-tokens"].removesuffix("s")) <= 660
    assert response.headers["x-ratelimit-remaining-requests"] == response.headers["x-ratelimit-limit-requests"] == "2"
    assert keyed.post("/tokenize", {"prompt": "x"}, headers=ALICE).status_code == 429
    assert not [name for name in chat(keyed, BOB).headers if name.startswith("x-ratelimit")]  # it has no limits


def test_request_that_was_refused_or_left_is_not_open_any_more(keyed: Caller) -> None:
    assert chat(keyed, ALICE, temperature=-1).status_code == 400
    keyed.engine.client.draining = True
    assert chat(keyed, ALICE, n=2).status_code == 503
    keyed.engine.client.draining = False
    assert chat(keyed, ALICE, n=2).status_code == 200
    account = keyed.app.state.service.accounts.by_name["alice"]
    assert (account.in_flight, account.ended) == (0, 2)
    assert (account.prompt_tokens, account.cached_tokens, account.output_tokens) == (10, 4, 8)


def test_metrics_and_logs_name_keys_and_never_show_them(keyed: Caller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        chat(keyed, ALICE)
        chat(keyed, {"Authorization": "Bearer sk-wrong"})
        text = without_model(keyed.get("/metrics", headers=OPERATOR).text)
    assert 'radixrt_key_requests_total{key="alice"} 1.0' in text
    assert 'radixrt_key_tokens_total{key="alice",kind="prompt"} 10.0' in text
    assert 'radixrt_key_tokens_total{key="alice",kind="output"} 4.0' in text
    assert 'radixrt_key_open_requests{key="alice"} 0.0' in text
    assert 'radixrt_key_refusals_total{key="alice",limit="tokens"} 0.0' in text
    assert re.search(r"POST /v1/chat/completions 200 \d+ ms key=alice", caplog.text)
    assert re.search(r"POST /v1/chat/completions 401 \d+ ms key=-", caplog.text)
    assert "sk-" not in text + caplog.text


def test_server_without_keys_has_no_metrics_of_keys(caller: Caller) -> None:
    caller.chat()
    assert "radixrt_key" not in "".join(
        line for line in caller.get("/metrics").text.splitlines() if not line.startswith("#")
    )
