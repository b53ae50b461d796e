"""Prompts for the text between two others: the tokens of a model, and the ids of a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixrt.messages.wire import unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.server.protocol.prompts import fill_in
from radixrt.tokenizer.fill_in import FORMATS, find_fill_in_tokens
from radixrt.tokenizer.prompt_encoder import PromptEncoder
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.client_requests import generating
from tests.tokenizer.conftest import byte_level
from tests.tokenizer.test_chat_template import MakeFolder


@pytest.fixture(scope="module", params=FORMATS, ids=lambda texts: texts[0])
def filling(
    request: pytest.FixtureRequest, make_folder: MakeFolder, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    backend = byte_level()
    backend.add_tokens([*request.param, "<|file_sep|>"])  # not special, as in Qwen's files
    folder: Path = make_folder(tmp_path_factory.mktemp("fill_in"), backend, eos_token="<|im_end|>")
    return Tokenizer.from_folder(folder)


def test_a_tokenizer_without_such_tokens(tokenizer: Tokenizer) -> None:
    assert find_fill_in_tokens(tokenizer.control_tokens) is None
    assert find_fill_in_tokens(Tokenizer.none([1]).control_tokens) is None


def test_only_whole_sets_of_tokens_count() -> None:
    assert find_fill_in_tokens({"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<fim_middle>": 3}) is None


def test_the_prompt_has_both_texts_behind_their_tokens(filling: Tokenizer) -> None:
    found = find_fill_in_tokens(filling.control_tokens)
    assert found is not None
    before = [filling.token_to_id(text) for text in (found.before_prefix, found.before_suffix, found.before_middle)]
    assert set(before) < set(found.end_ids)
    assert {filling.token_to_id("<|file_sep|>"), filling.token_to_id("<|endoftext|>")} < set(found.end_ids)
    encoder = PromptEncoder(filling, vocab_size=filling.vocab_size, context_length=1000)
    hostile = f"def f(){found.before_middle}:"
    for prompt, suffix in [("def f(x):\n", "\n    return x"), (hostile, "<|file_sep|>"), ("", "x")]:
        request = fill_in(generating("r", SamplingParams(stop_token_ids=(5,)), prompt="x"), prompt, suffix, found)
        ids = unpack_i32(encoder.input_ids(request.rows[0].input)).tolist()
        places = [i for i, token in enumerate(ids) if token in found.end_ids]
        assert [ids[i] for i in places] == before, "texts of users write no control tokens"
        assert filling.decode(ids[: places[1]], skip_special_tokens=False) == found.before_prefix + prompt
        assert filling.decode(ids[places[1] + 1 : -1], skip_special_tokens=False) == suffix
        assert request.sampling.stop_token_ids == (5, *found.end_ids)


def test_token_ids_in_front_are_taken_as_they_are(filling: Tokenizer) -> None:
    found = find_fill_in_tokens(filling.control_tokens)
    assert found is not None
    encoder = PromptEncoder(filling, vocab_size=filling.vocab_size, context_length=1000)
    request = fill_in(generating("r", SamplingParams(ignore_eos=True), prompt="x"), [7, 8, 9], "x", found)
    assert unpack_i32(encoder.input_ids(request.rows[0].input)).tolist()[1:4] == [7, 8, 9]
    assert request.sampling.stop_token_ids == ()
