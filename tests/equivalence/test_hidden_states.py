"""Hidden states that generations return equal transformers', whatever is cached, chunked, retracted or batched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.server import create_app
from tests.equivalence.reference import greedy, reference_model
from tests.equivalence.test_embedding import VARIANTS, prompts, reference, start

GREEDY = {"temperature": 0, "max_tokens": 5, "min_tokens": 5}
NOTHING = {"max_tokens": 0, "temperature": 0}


def expected(folder: Path, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return reference_model(folder).base_model(torch.tensor([ids])).last_hidden_state[0].numpy()


@pytest.mark.parametrize(
    ("kind", "variant"),
    [*(("qwen3", variant) for variant in VARIANTS), ("lfm2", "evicting"), ("qwen3_next", "default")],
)
def test_hidden_states_equal_transformers(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    atol = 1e-5 if kind == "qwen3" else 1e-4  # recurrent layers add up in another order
    with start(folder, **VARIANTS[variant]) as engine:
        for _ in range(2):  # cold and warm
            params = [{**GREEDY, "return_hidden_states": ("prompt", "last")[i % 2]} for i in range(len(prompts()))]
            found = engine.generate(prompts(), params)
            assert isinstance(found, list)
            for ids, wanted, completion in zip(prompts(), params, found, strict=True):
                states = expected(folder, ids)
                whole = wanted["return_hidden_states"] == "prompt"
                assert completion.hidden_states is not None
                array = completion.hidden_states.array
                assert array.shape == (len(ids) if whole else 1, 64)
                np.testing.assert_allclose(array, states if whole else states[-1:], atol=atol, rtol=0)
                assert completion.token_ids == greedy(folder, ids, 5)
                if whole:
                    assert completion.usage.cached_tokens == 0
        if kind == "qwen3" and variant in ("default", "chunk-7-page-4"):
            assert found[1].usage.cached_tokens > 20
        engine.check_invariants()


def test_beside_everything_else(tiny_model: Callable[[str], Path]) -> None:
    """A mean, scores, log-probabilities of prompts and plain requests in the same steps; small pool, long outputs."""
    folder = tiny_model("llama")
    ids = prompts()

    async def go() -> None:
        long = {"temperature": 0, "max_tokens": 40, "min_tokens": 40}
        tasks = [
            engine.async_generate(ids[:4], {**long, "prompt_logprobs": 1}, return_hidden_states="prompt"),
            engine.async_embed(ids, normalize=False),
            engine.async_score(ids[1], ["a", "b c"]),
            engine.async_generate(ids, {**long, "n": 2}),
            engine.async_generate(ids[5], NOTHING, return_hidden_states="prompt"),
        ]
        scored, embedded, _, plain, nothing = await asyncio.gather(*tasks)
        for prompt, completion in zip(ids[:4], scored, strict=True):
            np.testing.assert_allclose(completion.hidden_states.array, expected(folder, prompt), atol=1e-5, rtol=0)
            assert len(completion.prompt_logprobs) == len(prompt)
        vectors = np.stack([reference(folder, prompt, "last") for prompt in ids])
        np.testing.assert_allclose(embedded.vectors, vectors, atol=1e-5)
        assert all(completion.hidden_states is None for completion in plain)
        np.testing.assert_allclose(nothing.hidden_states.array, expected(folder, ids[5]), atol=1e-5, rtol=0)
        assert (nothing.text, nothing.token_ids) == ("", [])
        assert max(completion.timings.retractions for completion in [*scored, *plain]) > 0

    with start(folder, kv_cache_tokens=256, schedule_conservativeness=0.0, chunked_prefill_size=24) as engine:
        asyncio.run(go())
        engine.check_invariants()


def test_streams_constraints_and_routes(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("llama")
    text = "The capital of France is Paris. " * 3
    with start(folder) as engine:
        ids = engine.tokenize(text)
        states = expected(folder, ids)
        chunks = list(engine.stream(text, GREEDY, return_hidden_states="prompt"))
        assert [chunk.hidden_states is not None for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
        whole = chunks[-1].completion
        assert whole is not None
        np.testing.assert_allclose(whole.hidden_states.array, states, atol=1e-5)  # type: ignore[union-attr]
        # Forced from the first token on: the prompt's last state is computed all the same.
        forced = engine.generate([ids] * 2, {"temperature": 0}, regex="abc[0-9]", return_hidden_states="last")
        assert isinstance(forced, list)
        for completion in forced:
            np.testing.assert_allclose(completion.hidden_states.array[0], states[-1], atol=1e-5)  # type: ignore[union-attr]
        with TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
            body = {"text": text, "sampling_params": {"max_tokens": 2}, "return_hidden_states": "prompt"}
            plain = client.post("/generate", json=body).json()["meta_info"]["hidden_states"]
            np.testing.assert_allclose(plain, states, atol=1e-5)
            asked = {"prompt": text, "max_tokens": 2, "return_hidden_states": "last"}
            choice = client.post("/v1/completions", json=asked).json()["choices"][0]
            np.testing.assert_allclose(choice["hidden_states"], states[-1:], atol=1e-5)


def test_a_bound_on_their_bytes(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with start(tiny_model("llama")) as engine:
        monkeypatch.setattr("radixrt.messages.reads.MAX_HIDDEN_BYTES", 4 * 64 * 10)
        assert engine.generate([5] * 10, NOTHING, return_hidden_states="prompt").hidden_states is not None
        assert engine.generate([5] * 20, NOTHING, return_hidden_states="last").hidden_states is not None
        with pytest.raises(RequestError, match=r"11 tokens take 2816 bytes; at most 2560 .*10 tokens") as raised:
            engine.generate([5] * 11, NOTHING, return_hidden_states="prompt")
        assert (raised.value.param, raised.value.status) == ("return_hidden_states", 400)
        with TestClient(create_app(engine.client, ServerConfig(), "tiny")) as client:
            body = {"input_ids": [[5] * 6] * 2, "return_hidden_states": "prompt"}
            answer = client.post("/generate", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_hidden_states")
        with pytest.raises(RequestError) as raised:
            engine.generate([5], return_hidden_states="all")  # type: ignore[call-overload]
        assert raised.value.param == "return_hidden_states"
