"""/server_info: the model, its weights and the sizes of its pools."""

from __future__ import annotations

import msgspec
import pytest

from radixrt.messages.runner import WeightsInfo
from tests.server.fake_engine import FakeEngine, info
from tests.server.helpers import Caller, check_error

PLAIN = {"scheme": "plain", "kernels": [], "quantized": 0.0}


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
@pytest.mark.parametrize(
    ("weights", "shown"),
    [
        (WeightsInfo(), PLAIN),
        (
            WeightsInfo("int8 rows", ("C++", "plain torch"), 0.78954),
            {"scheme": "int8 rows", "kernels": ["C++", "plain torch"], "quantized": 0.7895},
        ),
    ],
)
def test_weights(path: str, weights: WeightsInfo, shown: object, caller: Caller, engine: FakeEngine) -> None:
    engine.deliver(msgspec.structs.replace(info(), weights=weights))
    answer = caller.get(path).json()
    assert answer["weights"] == shown
    assert (answer["model"], answer["device"], answer["dtype"]) == ("/models/fake", "cpu", "float32")
    assert (answer["kv_cache_tokens"], answer["max_running_requests"]) == (4096, 8)
    assert answer["tool_call_format"] == "json"


def test_a_failed_engine_has_none(caller: Caller, engine: FakeEngine) -> None:
    engine.client.fail("too many restarts")
    check_error(caller.get("/server_info"), 503, None, "unavailable")
