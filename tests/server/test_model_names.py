"""A model under several names: requests may have any of them, answers carry the first."""

from __future__ import annotations

import pytest

from radixrt.config import make_config, parse_names
from radixrt.errors import ConfigError
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.helpers import Caller, check_error


def test_every_name_is_served_and_the_first_is_in_the_answers(engine: FakeEngine) -> None:
    caller = Caller(engine, aliases=[MODEL, "gpt-4o", "team/alias"])
    assert [card["id"] for card in caller.get("/v1/models").json()["data"]] == [MODEL, "gpt-4o", "team/alias"]
    assert caller.get("/v1/models/team/alias").json()["id"] == "team/alias"
    for name in (MODEL, "gpt-4o", "team/alias"):
        assert caller.chat(model=name).json()["model"] == MODEL
    message = check_error(caller.chat(model="gpt-5"), 404, "model", "model_not_found")
    assert message.endswith(f"this server serves {MODEL!r}, 'gpt-4o', 'team/alias'")


def test_names_are_separated_by_commas() -> None:
    assert parse_names(None) == ()
    assert parse_names("a, b/c,a") == ("a", "b/c")
    for listed in ("", "a,,b", "a,"):
        with pytest.raises(ConfigError, match="served_model_name must be names separated by commas"):
            make_config(served_model_name=listed)
