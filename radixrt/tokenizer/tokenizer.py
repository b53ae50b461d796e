"""`Tokenizer`: tokenizer of a model folder, with its special tokens, end tokens and chat template.

The module uses the `tokenizers` library directly, because importing transformers takes seconds. Only folders without a
tokenizer.json need transformers, which converts their tokenizer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from radixrt.errors import ModelLoadError
from radixrt.tokenizer.chat_template import ChatTemplate
from radixrt.tokenizer.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from radixrt.tokenizer.token_bytes import build_table, plan_decoder

OTHER_FILES = (
    "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "tiktoken.model", "tekken.json",
)  # fmt: skip
"""Files from which transformers makes a tokenizer where there is no tokenizer.json."""

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that chat templates refer to by name."""

SMALL_TEXT_CHARS = 32_768
"""Above this length the library's batch call is faster: it computes no offsets, but starts threads."""

MARKER = re.compile(r"<[^\s<>]{1,64}>|\[[A-Z_/]{2,64}\]")
"""Added tokens of this shape are control tokens, whether or not they are declared special."""

NORMALIZED_SHRINKAGE = 4
"""Largest factor by which Unicode normalization shortens a text in bytes (a decomposed Hangul syllable: 9 to 3)."""


class Tokenizer:
    """Converts text to token ids and back. Use `from_folder` to create one.

    Attributes:
        vocab_size: largest token id plus one; the model may pad its own vocabulary beyond it.
        special_ids: token ids that skip_special_tokens removes from a text; `special_texts` maps them to their texts.
        control_tokens: id of each control token by its text: the special tokens, and added tokens that look like one
            (`<think>`, `[INST]`), whether or not they are declared special.
        eos_ids: token ids that end a text, from the generation config, the model config and the tokenizer's eos_token.
        special_tokens: texts of the model's named tokens by name, e.g. "bos_token".
        chat_template: None if the model has none.
        config: contents of tokenizer_config.json.
        prefix_ids: token ids that the tokenizer adds before a text, e.g. bos; usually none.
        unknown_ids: id of the unknown token, which may be in `special_ids`; empty without an unknown token.
        max_bytes_per_token: largest number of bytes of a text that one token represents; None if there is no bound (an
            unknown token may represent any number). Whitespace that added tokens absorb is not counted.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Sequence[int] = (),
        special_tokens: dict[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._plan = plan_decoder(backend)
        convert = None if self._plan.family != "other" else lambda token: backend.decode([token], False).encode()
        self._bytes = build_table(backend, self._plan, convert)
        added = backend.get_added_tokens_decoder()
        self.special_texts = {token_id: token.content for token_id, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_texts)
        self.control_tokens = {
            token.content: token_id
            for token_id, token in added.items()
            if token.special or MARKER.fullmatch(token.content)
        }
        self._bytes_without_special = list(self._bytes)
        for token_id in self.special_ids:
            self._bytes_without_special[token_id] = b""
        self._known_ids = frozenset(backend.get_vocab(with_added_tokens=True).values())
        self._texts: dict[int, str] = {}
        self.vocab_size = len(self._bytes)
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.config = dict(config or {})
        self.prefix_ids = self._find_prefix()
        unknown = self.special_tokens.get("unk_token") or getattr(backend.model, "unk_token", None)
        self.unknown_ids = frozenset({backend.token_to_id(unknown)} - {None}) if unknown else frozenset()
        self.max_bytes_per_token = self._bound_bytes_per_token()

    @classmethod
    def none(cls, eos_ids: Sequence[int]) -> Tokenizer:
        """Create the tokenizer of an engine that serves token ids alone: it has no tokens, and gives no text."""
        return cls(tokenizers.Tokenizer(tokenizers.models.BPE()), eos_ids=eos_ids)

    @property
    def is_none(self) -> bool:
        """True if there is no tokenizer; see `none`."""
        return self.vocab_size == 0

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """Tokenizer of the `tokenizers` library, shared with this object: changes to its settings apply to both."""
        return self._backend

    @property
    def decoder_family(self) -> str:
        """Kind of the decoder; see `DecoderPlan.family`."""
        return self._plan.family

    @classmethod
    def from_folder(
        cls, path: str | os.PathLike[str], *, chat_template_file: str | os.PathLike[str] | None = None
    ) -> Tokenizer:
        """Load from a Hugging Face folder, or from a tokenizer.json together with the other files of its folder.

        Args:
            chat_template_file: Jinja chat template that replaces the model's own.

        Raises:
            ModelLoadError: naming the file that is missing or cannot be read.
        """
        path = Path(path)
        folder, file = (path.parent, path) if path.is_file() else (path, path / "tokenizer.json")
        if not folder.is_dir():
            raise ModelLoadError(f"no tokenizer: {folder} is not a folder")
        config = _read_json(folder / "tokenizer_config.json")
        if not any((folder / name).is_file() for name in (file.name, *OTHER_FILES)):
            raise _no_tokenizer(folder)
        if file.is_file():
            try:
                backend = tokenizers.Tokenizer.from_file(str(file))
            except Exception as error:  # the library raises bare Exception
                raise ModelLoadError(f"{file} cannot be read as a tokenizer: {error}; download it again") from error
        else:
            backend = _convert_with_transformers(folder)
        if backend.get_vocab_size(with_added_tokens=False) <= 1:
            raise _no_tokenizer(folder)
        named = _named_tokens(folder, config)
        try:
            _add_missing_tokens(backend, config, named)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelLoadError(f"{folder / 'tokenizer_config.json'} declares tokens wrongly: {error!r}") from error
        eos_ids = set(_eos_ids(folder))
        if "eos_token" in named and (eos := backend.token_to_id(named["eos_token"])) is not None:
            eos_ids.add(eos)
        template = ChatTemplate.from_folder(folder, config, named, override=chat_template_file)
        return cls(backend, eos_ids=tuple(eos_ids), special_tokens=named, chat_template=template, config=config)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode a text. Special tokens written in the text become their ids, as in transformers.

        Args:
            add_special_tokens: add the model's tokens around a text (e.g. bos); False for a rendered chat.
        """
        try:
            if len(text) <= SMALL_TEXT_CHARS:
                return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except BaseException as error:
            # A panic of the Rust library is not an Exception and would end the process.
            if type(error).__name__ != "PanicException":
                raise
            raise RuntimeError(f"the tokenizer cannot read this text: {error}") from error

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Encode two texts as one sequence, with the tokens that the model's post-processor puts around and between."""
        encoded: list[int] = self._backend.encode(first, second).ids
        return encoded

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode a whole sequence with the library."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text (not always valid UTF-8); b"" for an unused id."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def token_text(self, token_id: int) -> str:
        """Return `token_bytes` as text, with U+FFFD for bytes that are not UTF-8."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.token_bytes(token_id).decode(errors="replace")
        return text

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token in the vocabulary's spelling, e.g. "<|im_end|>"; None if there is none."""
        return self._backend.token_to_id(token)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Create an incremental detokenizer for one output."""
        plan = self._plan
        table = self._bytes_without_special if skip_special_tokens else self._bytes
        if plan.family == "byte_level":
            return ByteDetokenizer(table)

        def keeps(token_id: int) -> bool:
            return token_id in self._known_ids and not (skip_special_tokens and token_id in self.special_ids)

        if plan.family == "text":

            def first_bytes(token_id: int) -> bytes | None:
                if not keeps(token_id):
                    return None
                return plan.token_bytes(self._backend.id_to_token(token_id) or "", first=True)

            return ByteDetokenizer(
                table,
                errors="radixrt_each_byte",
                first_bytes=first_bytes if plan.first_drops else None,
                strip_char=plan.strip_char,
                strip_left=plan.strip_left,
            )
        return WindowDetokenizer(lambda ids: self._backend.decode(ids, skip_special_tokens=False), keeps)

    def _find_prefix(self) -> tuple[int, ...]:
        encoding = self._backend.encode("a", add_special_tokens=True)
        added = encoding.special_tokens_mask
        return tuple(encoding.ids[: added.index(0)] if 0 in added else encoding.ids)

    def _bound_bytes_per_token(self) -> int | None:
        if self._plan.family != "byte_level" and not getattr(self._backend.model, "byte_fallback", False):
            return None
        longest = max(map(len, self._bytes), default=0)
        return longest if self._backend.normalizer is None else longest * NORMALIZED_SHRINKAGE


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return value


def _no_tokenizer(folder: Path) -> ModelLoadError:
    return ModelLoadError(
        f"{folder} has no tokenizer (no vocabulary in tokenizer.json, {', '.join(OTHER_FILES)}); copy the tokenizer's "
        "files there, name their folder with tokenizer (--tokenizer), or serve token ids alone with "
        "skip_tokenizer_init (--skip-tokenizer-init)"
    )


def _convert_with_transformers(folder: Path) -> tokenizers.Tokenizer:
    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise ModelLoadError(
            f"{folder} has no tokenizer.json, and transformers cannot make one of what is there: {error}; "
            "--skip-tokenizer-init serves token ids alone"
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelLoadError(
            f"{folder} has no tokenizer.json, and its {type(loaded).__name__} has no fast form; convert it first"
        )
    return backend


def _content(token: Any) -> str | None:
    """Return the text of a token in a tokenizer config: a string, or an object with "content"."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _named_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    # special_tokens_map.json is the older form; it is used only if the config has no list of added tokens.
    older = {} if "added_tokens_decoder" in config else _read_json(folder / "special_tokens_map.json")
    found = ((name, _content(older.get(name)) or _content(config.get(name))) for name in NAMED_TOKENS)
    return {name: text for name, text in found if text is not None}


def _add_missing_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any], named: dict[str, str]) -> None:
    """Add the tokens that only the config declares, in the order and with the flags of transformers."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing: dict[str, tokenizers.AddedToken] = {}
    declared = config.get("added_tokens_decoder") or {}
    for _, fields in sorted(declared.items(), key=lambda item: int(item[0])):
        flags = {k: v for k, v in fields.items() if k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        if fields["content"] in named.values():
            flags["special"] = True
        missing[fields["content"]] = tokenizers.AddedToken(fields["content"], **flags)
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    texts = [*named.values(), *map(_content, extra.values() if isinstance(extra, dict) else extra)]
    for text in texts:
        if text is not None:
            missing.setdefault(text, tokenizers.AddedToken(text, special=True))
    backend.add_tokens([token for text, token in missing.items() if text not in present])


def _eos_ids(folder: Path) -> list[int]:
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        config = _read_json(folder / name)
        for holder in (config, config.get("text_config") or {}):
            value = holder.get("eos_token_id")
            found += [value] if isinstance(value, int) else value or []
    return found
