"""Small tokenizers of each family of decoders, built here and saved as model folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from radixrt.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.model_templates import CHATML
from tests.tokenizer.worker_bench import Bench

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It is not what it was; they're gone, aren't they?",
    "def main(argv):\n    return [x ** 2 for x in range(10) if x % 2 == 0]\n\t# done",
    "Zażółć gęślą jaźń — Fröhliche Weihnachten, 日本語のテキスト, 안녕하세요, emoji 🙂👍🏽 and 1234567890.",
]


def special(*texts: str, **flags: Any) -> list[tokenizers.AddedToken]:
    return [tokenizers.AddedToken(text, special=True, normalized=False, **flags) for text in texts]


def byte_level() -> tokenizers.Tokenizer:
    """Like GPT-2, Llama 3 and SmolLM2."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    # Not special; one with characters outside the byte alphabet, and one whose characters all are bytes of it.
    backend.add_tokens(
        [tokenizers.AddedToken("<think>"), tokenizers.AddedToken("two words é"), tokenizers.AddedToken("ÿé")]
    )
    return backend


def byte_fallback() -> tokenizers.Tokenizer:
    """Like Llama 2 and Phi-3: BPE over '▁' with byte tokens; the decoder strips the first space."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special("<unk>", "<s>", "</s>") + [f"<0x{i:02X}>" for i in range(256)],
        limit_alphabet=60,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    rebuilt = json.loads(backend.to_str())
    rebuilt["added_tokens"] = rebuilt["added_tokens"][:3]  # byte tokens belong to the model alone
    backend = tokenizers.Tokenizer.from_str(json.dumps(rebuilt))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def gemma_like() -> tokenizers.Tokenizer:
    """Like Gemma: as `byte_fallback`, but nothing is stripped."""
    backend = byte_fallback()
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def unigram() -> tokenizers.Tokenizer:
    """Like T5 and other SentencePiece Unigram models."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=special("<unk>", "</s>"), unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def word_piece() -> tokenizers.Tokenizer:
    """Like BERT: its decoder looks at neighbours, so this one takes the window."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special("[UNK]", "[SEP]"), show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


BUILDERS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "gemma_like": gemma_like,
    "unigram": unigram,
    "word_piece": word_piece,
}


def save_folder(folder: Path, backend: tokenizers.Tokenizer, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="session")
def make_folder() -> Callable[..., Path]:
    """Saves a tokenizer (default: a byte-level one) and its config as a model folder."""

    def make(folder: Path, backend: tokenizers.Tokenizer | None = None, **config: Any) -> Path:
        return save_folder(folder, backend or byte_level(), **config)

    return make


@pytest.fixture(scope="session")
def backends() -> dict[str, tokenizers.Tokenizer]:
    return {name: build() for name, build in BUILDERS.items()}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, backends: dict[str, tokenizers.Tokenizer]) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    names: dict[str, dict[str, Any]] = {
        "byte_level": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML},
        "byte_fallback": {
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>"},
            "unk_token": "<unk>",
        },
        "gemma_like": {"bos_token": "<s>", "eos_token": "</s>"},
        "unigram": {"eos_token": "</s>", "unk_token": "<unk>"},
        "word_piece": {"sep_token": "[SEP]", "unk_token": "[UNK]"},
    }
    return {name: save_folder(root / name, backend, **names[name]) for name, backend in backends.items()}


@pytest.fixture(scope="session")
def loaded(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: Tokenizer.from_folder(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def tokenizer(loaded: dict[str, Tokenizer]) -> Tokenizer:
    """The byte-level one."""
    return loaded["byte_level"]


@pytest.fixture
def bench(tokenizer: Tokenizer) -> Bench:
    return Bench(tokenizer)
