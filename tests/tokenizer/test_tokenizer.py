"""Loading model folders, and agreement with transformers token by token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from radixrt.errors import ModelLoadError
from radixrt.tokenizer.info import tokenizer_info
from radixrt.tokenizer.token_bytes import plan_decoder
from radixrt.tokenizer.tokenizer import Tokenizer

MakeFolder = Callable[..., Path]
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "line\n\n\tnext  line",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>in text</s> and <think> too<unk>",
    "Zażółć 日本語 🙂👍🏽 \u200d \x00 ﬁ ½ İ",
    "x" * 300,
    "The quick brown fox. " * 2000,  # above SMALL_TEXT_CHARS
]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "gemma_like", "unigram", "word_piece"])
def test_agrees_with_transformers(folders: dict[str, Path], loaded: dict[str, Tokenizer], name: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folders[name]), loaded[name]
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    assert ours.vocab_size == len(theirs)
    assert ours.special_ids >= set(theirs.all_special_ids)
    assert ours.special_tokens == theirs.special_tokens_map


def test_tokens_that_only_the_config_declares(make_folder: MakeFolder, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    declared = {
        "500": {"content": "<tool>", "special": False, "lstrip": True},
        "501": {"content": "<pad>", "special": True},
    }
    folder = make_folder(
        tmp_path,
        added_tokens_decoder=declared,
        pad_token="<pad>",
        eos_token="<end>",  # in neither list
        bos_token="<think>",  # in the vocabulary, but not as a special token
        additional_special_tokens=["<extra>"],
    )
    ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    text = "a <tool> b<pad><end> <extra><think>"
    ids = theirs.encode(text)
    assert ours.encode(text) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert "".join(ours.detokenizer().push(ids)) == ours.decode(ids)
    assert ours.eos_ids == (theirs.eos_token_id,)


def test_end_tokens_come_from_every_config(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, eos_token="<|im_end|>")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0, "text_config": {"eos_token_id": None}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    assert Tokenizer.from_folder(folder).eos_ids == (0, 1, 2)


def test_a_tokenizer_json_alone_is_enough(backends: dict[str, tokenizers.Tokenizer], tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    backends["byte_level"].save(str(file))
    tokenizer = Tokenizer.from_folder(file)
    assert tokenizer.encode("hi")
    assert tokenizer.eos_ids == ()
    assert tokenizer.chat_template is None


def test_truncation_and_padding_of_the_file_are_off(
    make_folder: MakeFolder, backends: dict[str, tokenizers.Tokenizer], tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer.from_str(backends["byte_level"].to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=10)
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("x" * 50), skip_special_tokens=False) == "x" * 50


def test_families(backends: dict[str, tokenizers.Tokenizer]) -> None:
    families = {name: plan_decoder(backend).family for name, backend in backends.items()}
    assert families == {
        "byte_level": "byte_level",
        "byte_fallback": "text",
        "gemma_like": "text",
        "unigram": "text",
        "word_piece": "other",
    }


def test_token_bytes(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    for text in ("the", " quick", "é", "🙂"):
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    lead = tokenizer.token_to_id("ð")
    assert lead is not None
    assert tokenizer.token_bytes(lead) == b"\xf0"
    assert tokenizer.token_text(lead) == "\ufffd"
    assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(10**9) == b""
    fallback = loaded["byte_fallback"]
    assert fallback.token_bytes(fallback.token_to_id("<0x0A>") or 0) == b"\n"
    spaced = next(i for i in range(fallback.vocab_size) if fallback.token_bytes(i).startswith(b" ") and i > 300)
    assert fallback.token_text(spaced) == fallback.token_bytes(spaced).decode()


def test_bytes_per_token_is_a_bound(loaded: dict[str, Tokenizer]) -> None:
    for name in ("byte_level", "byte_fallback"):
        bound = loaded[name].max_bytes_per_token
        assert bound is not None
        for text in TEXTS:
            assert len(text.encode()) <= bound * len(loaded[name].encode(text))
    assert loaded["unigram"].max_bytes_per_token is None  # <unk> stands for any number
    assert loaded["word_piece"].max_bytes_per_token is None


def test_a_normalizer_loosens_the_bound() -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    backend.add_tokens(["abc"])
    assert Tokenizer(backend).max_bytes_per_token == 3
    backend.normalizer = normalizers.NFC()
    assert Tokenizer(backend).max_bytes_per_token == 12


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({}, "has no tokenizer .*--skip-tokenizer-init"),
        ({"tokenizer.json": "{"}, "cannot be read as a tokenizer"),
        ({"tokenizer.json": None, "tokenizer_config.json": "["}, "is not JSON"),
        ({"tokenizer.json": None, "tokenizer_config.json": "[]"}, "JSON object"),
        ({"tokenizer.json": None, "tokenizer_config.json": '{"added_tokens_decoder": {"x": {}}}'}, "declares tokens"),
        ({"tokenizer.json": None, "tokenizer_config.json": '{"added_tokens_decoder": [1]}'}, "declares tokens"),
        ({"tokenizer.json": None, "tokenizer_config.json": '{"chat_template": [{"name": "default"}]}'}, "named texts"),
        ({"tokenizer.json": None, "chat_template.jinja": "{% if %}"}, "does not compile"),
    ],
)
def test_unreadable_folders_say_what_is_wrong(
    backends: dict[str, tokenizers.Tokenizer], tmp_path: Path, files: dict[str, Any], what: str
) -> None:
    for name, content in files.items():
        if content is None:
            backends["byte_level"].save(str(tmp_path / name))
        else:
            (tmp_path / name).write_text(content)
    with pytest.raises(ModelLoadError, match=what):
        Tokenizer.from_folder(tmp_path)


def test_a_panic_of_the_library_is_an_ordinary_error(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As PyO3 raises it."""

    class Panicking:
        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise PanicException("index out of bounds")

    monkeypatch.setattr(tokenizer, "_backend", Panicking())
    with pytest.raises(RuntimeError, match="index out of bounds"):
        tokenizer.encode("a")


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_a_folder_without_tokenizer_json_is_converted(tmp_path: Path, folders: dict[str, Path]) -> None:
    pytest.importorskip("transformers")
    model = json.loads((folders["byte_level"] / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.encode("The quick brown fox 🙂")
    assert tokenizer.decode(ids) == tokenizer.detokenizer().push(ids) == "The quick brown fox 🙂"


def test_info_has_the_tokens_as_texts_and_no_path(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["byte_level"], folder)
    config = {
        "vocab_file": "/srv/model/vocab.json",
        "name_or_path": "/srv/model",
        "model_max_length": 10**30,
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
        "added_tokens_decoder": {"7": {"content": "<x>", "special": False}},
        "chat_template": "from the config",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("from the file")
    assert json.loads(tokenizer_info(Tokenizer.from_folder(folder))) == {
        "model_max_length": 10**30,
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {"7": "<x>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "from the file",
    }
    assert tokenizer_info(Tokenizer.none([])) == b""
