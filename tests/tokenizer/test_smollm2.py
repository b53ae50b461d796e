"""The embedded model's own tokenizer."""

from __future__ import annotations

import random

import pytest

from radixrt.config import ModelConfig
from radixrt.models.loading.source import prepare_model
from radixrt.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def smollm2() -> tuple[Tokenizer, str]:
    """The tokenizer, and the folder that it comes from."""
    folder = prepare_model(ModelConfig()).folder
    return Tokenizer.from_folder(folder), str(folder)


def test_what_it_is(smollm2: tuple[Tokenizer, str]) -> None:
    tokenizer, _ = smollm2
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.special_tokens["bos_token"] == "<|im_start|>"
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.max_bytes_per_token == 81


def test_its_chat_template(smollm2: tuple[Tokenizer, str]) -> None:
    tokenizer, _ = smollm2
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render([{"role": "user", "content": "What is the capital of France?"}])
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids.count(1) == text.count("<|im_start|>")


def test_it_agrees_with_transformers(smollm2: tuple[Tokenizer, str]) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer, folder = smollm2
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (
        "In 1984, 3.14159 and 10,000.",
        "def f(x):\n\treturn x ** 2\n",
        "Zażółć 日本語 🙂👍🏽",
        "<|im_end|> <file_sep>",
    ):
        assert tokenizer.encode(text) == theirs.encode(text)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "é\n"}]
    assert tokenizer.chat_template is not None
    for prompt in (True, False):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert tokenizer.chat_template.render(messages, add_generation_prompt=prompt) == expected


def test_digits_are_tokens_of_their_own(smollm2: tuple[Tokenizer, str]) -> None:
    tokenizer, _ = smollm2  # transformers' own conversion of the GGUF loses this
    assert [tokenizer.token_text(i) for i in tokenizer.encode("x 1984")] == ["x", " ", "1", "9", "8", "4"]


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_stream_to_the_library_s_text(smollm2: tuple[Tokenizer, str], skip: bool) -> None:
    tokenizer, _ = smollm2
    rng = random.Random(7)
    for _ in range(300):
        ids = [rng.randrange(rng.choice([300, tokenizer.vocab_size])) for _ in range(rng.randrange(60))]
        detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
        text = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
