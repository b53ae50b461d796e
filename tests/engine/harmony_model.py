"""A tiny gpt-oss whose tokenizer has Harmony's control tokens, and whose chat template writes them."""

from __future__ import annotations

import json
from pathlib import Path

from radixrt.chat.harmony import CALL, MARKERS, RETURN
from tests.chat.templates import HARMONY
from tests.tiny_models import make_tiny_model


def make_harmony_model(folder: Path) -> Path:
    """Write the model; the tokens that end an answer are those of gpt-oss."""
    import tokenizers

    make_tiny_model(folder, "gpt_oss", num_hidden_layers=2)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(HARMONY)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = {"eos_token_id": [tokenizer.token_to_id(RETURN), tokenizer.token_to_id(CALL)]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": ends["eos_token_id"][0]}))
    return folder
