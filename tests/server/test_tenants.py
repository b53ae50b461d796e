"""Namespaces, limits and accounts of tenants, with an injected clock."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixrt.errors import RequestError
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, ProgramHint, Usage
from radixrt.messages.request import Envelope
from radixrt.server.access.tenants import DAY_S, EVERYONE, RATE_LIMIT_HEADERS, Accounts, Tenant
from tests.client_requests import generating, scoring

NAMES = st.text("ab1:gk", min_size=1, max_size=12)
SALTS = st.text("ab1:gk", max_size=12)
TENANTS = st.builds(Tenant, name=NAMES, cache_group=st.none() | NAMES)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def finished(prompt: int, output: int, cached: int = 0) -> RequestOutput:
    return RequestOutput("r", finish=Finish("stop"), usage=Usage(prompt, output, cached))


# --- namespaces ---


def owner(tenant: Tenant) -> tuple[str, str]:
    return ("key", tenant.name) if tenant.cache_group is None else ("group", tenant.cache_group)


@given(TENANTS, SALTS, TENANTS, SALTS)
def test_namespaces_are_equal_exactly_for_the_same_owner_and_salt(a: Tenant, x: str, b: Tenant, y: str) -> None:
    assert (a.namespace(x) == b.namespace(y)) == ((owner(a), x) == (owner(b), y))


@given(NAMES, SALTS, NAMES, SALTS)
def test_program_ids_are_equal_exactly_for_the_same_key_and_program(a: str, x: str, b: str, y: str) -> None:
    assert (Tenant(a).program(x) == Tenant(b).program(y)) == ((a, x) == (b, y))


def test_namespaces_are_the_same_in_every_process() -> None:
    code = "from radixrt.server.access.tenants import Tenant; print(Tenant('alice').namespace('é'), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONUTF8": "1"})
    assert done.stdout.decode() == Tenant("alice").namespace("é") == "k5:aliceé"


def test_clients_are_told_apart_by_key_or_by_address() -> None:
    request = generating("r", prompt="x")
    assert Tenant("alice").own(request, "1", "10.0.0.1").envelope.client == "alice"
    assert EVERYONE.own(request, "1", "10.0.0.1").envelope.client == "10.0.0.1"


def test_requests_carry_their_tenants_names() -> None:
    hint = ProgramHint("p", "b")
    request = generating("mine", prompt="x", cache_salt="s", program=hint)
    own = Tenant("alice").own(request, "made.1")
    assert own.envelope == Envelope(
        "made.1", cache_salt="k5:alices", program=ProgramHint("5:alicep", "b"), tenant="alice", client="alice"
    )
    assert (own.rows, own.sampling) == (request.rows, request.sampling)
    score = Tenant("alice", cache_group="team").own(scoring("mine", ["a"], prompt="x"), "made.2")
    assert score.envelope == Envelope("made.2", cache_salt="g4:team", tenant="alice", client="alice")


def test_without_keys_names_stay_the_clients() -> None:
    assert (EVERYONE.namespace("s"), EVERYONE.program("p")) == ("s", "p")


# --- limits ---


def test_open_requests_are_limited() -> None:
    tenant = Tenant("alice", max_requests=3)
    account = Accounts(Clock()).of(tenant)
    account.admit(tenant, 2)
    account.admit(tenant, 1)
    with pytest.raises(RequestError, match="'alice' allows 3 open requests") as refused:
        account.admit(tenant, 1)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1.0)
    account.end(tenant, finished(1, 1), counts_prompt=True)
    account.admit(tenant, 1)
    account.withdraw(2)
    account.admit(tenant, 2)
    assert account.in_flight == 3
    assert account.refused == {"requests": 1, "tokens": 0, "tokens_day": 0}


def test_what_can_never_be_admitted_is_a_400() -> None:
    tenant = Tenant("alice", max_requests=3)
    account = Accounts(Clock()).of(tenant)
    with pytest.raises(RequestError, match="asks for 4 completions") as refused:
        account.admit(tenant, 4)
    assert refused.value.status == 400
    assert account.in_flight == 0


def test_tokens_a_minute_are_limited_and_come_back() -> None:
    clock = Clock()
    tenant = Tenant("alice", tokens_per_minute=60)
    account = Accounts(clock).of(tenant)
    account.admit(tenant, 2)
    account.end(tenant, finished(20, 10), counts_prompt=True)
    account.admit(tenant, 1)
    account.end(tenant, finished(20, 40), counts_prompt=False)  # its prompt was counted: 70 of 60 are used
    with pytest.raises(RequestError, match="'alice' allows 60 tokens a minute") as refused:
        account.admit(tenant, 1)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 11.0)
    clock.now += 10.5
    with pytest.raises(RequestError):
        account.admit(tenant, 1)
    clock.now += 0.5
    account.admit(tenant, 1)
    assert (account.prompt_tokens, account.output_tokens) == (20, 50)


def test_unused_minutes_are_not_saved_up() -> None:
    clock = Clock()
    tenant = Tenant("alice", tokens_per_minute=60)
    account = Accounts(clock).of(tenant)
    clock.now += 3600
    account.admit(tenant, 1)
    account.end(tenant, finished(60, 0), counts_prompt=True)
    with pytest.raises(RequestError) as refused:
        account.admit(tenant, 1)
    assert refused.value.retry_after_s == 1.0


def test_changed_limit_keeps_what_was_used() -> None:
    clock = Clock()
    before, after = Tenant("alice", tokens_per_minute=60), Tenant("alice", tokens_per_minute=600)
    account = Accounts(clock).of(before)
    account.admit(before, 1)
    account.end(before, finished(100, 0), counts_prompt=True)
    account.admit(after, 1)
    with pytest.raises(RequestError) as refused:
        account.admit(before, 1)
    assert refused.value.retry_after_s == pytest.approx(41.0)


def test_tokens_of_a_day_come_back_at_midnight() -> None:
    clock, utc = Clock(), Clock()
    utc.now = 20_000 * DAY_S - 100.0
    tenant = Tenant("alice", tokens_per_day=50)
    account = Accounts(clock, utc).of(tenant)
    account.admit(tenant, 1)
    account.end(tenant, finished(40, 20), counts_prompt=True)
    with pytest.raises(RequestError, match=r"'alice' allows 50 tokens a day, .*; try again in 100 s") as refused:
        account.admit(tenant, 1)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 100.0)
    assert dict(account.headers(tenant)) == {
        b"x-ratelimit-limit-tokens-day": b"50",
        b"x-ratelimit-remaining-tokens-day": b"0",
        b"x-ratelimit-reset-tokens-day": b"100s",
    }
    utc.now += 100.0
    account.admit(tenant, 1)
    account.end(tenant, finished(30, 0), counts_prompt=True)
    assert dict(account.headers(tenant))[b"x-ratelimit-remaining-tokens-day"] == b"20"
    utc.now -= 3600.0  # the machine's clock is set back over midnight
    assert dict(account.headers(tenant))[b"x-ratelimit-remaining-tokens-day"] == b"20"


def test_headers_name_all_limits_of_a_key_and_no_others() -> None:
    clock = Clock()
    tenant = Tenant("alice", max_requests=3, tokens_per_minute=60, tokens_per_day=1000)
    account = Accounts(clock).of(tenant)
    account.admit(tenant, 2)
    account.end(tenant, finished(20, 10), counts_prompt=True)
    headers = {name.decode(): value.decode() for name, value in account.headers(tenant)}
    assert tuple(headers) == RATE_LIMIT_HEADERS
    assert [headers[f"x-ratelimit-{part}-requests"] for part in ("limit", "remaining", "reset")] == ["3", "2", "1s"]
    assert [headers[f"x-ratelimit-{part}-tokens"] for part in ("limit", "remaining", "reset")] == ["60", "30", "30s"]
    assert headers["x-ratelimit-remaining-tokens-day"] == "970"
    assert not Tenant("bob").is_limited


def test_request_that_computed_nothing_takes_no_tokens() -> None:
    tenant = Tenant("alice", tokens_per_minute=1)
    account = Accounts(Clock()).of(tenant)
    account.admit(tenant, 1)
    account.end(tenant, RequestOutput("r", finish=Finish("abort")), counts_prompt=True)
    account.admit(tenant, 1)
    assert (account.ended, account.in_flight) == (1, 1)
