"""`model_fingerprint`: identity of a model and of the options that its keys and values depend on.

Keys and values on disk are used only by an engine with the same fingerprint. The fingerprint covers config.json, the
headers of the weight files and a sample of every tensor, so that a fine-tuned model, another quantization or a changed
rope base has another fingerprint. The version of the engine, its kernels and the tokenizer are not covered: keys and
values depend on token ids alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radixrt.models.loading.model_files import LENGTH_BYTES

FORMAT = 1
"""Version of the files of the disk tier; a change makes all older files foreign."""
SAMPLE_BYTES = 4096
MAX_TENSORS = 4096
"""Largest number of tensors of a file of which a sample is read; of more, every n-th."""
WITHOUT_EFFECT = frozenset({"_name_or_path", "transformers_version", "use_cache"})
"""Entries of config.json that change no key and no value."""
CONFIGS = ("config.json", "hf_quant_config.json")


def model_fingerprint(folder: Path, weights: list[Path], options: Mapping[str, Any]) -> str:
    """Return the fingerprint of a model, 64 hexadecimal digits.

    Args:
        folder: folder of the model, with config.json.
        weights: safetensors files of the model; empty for random weights.
        options: further values that keys and values, or the layout of the files, depend on; plain JSON values.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, options], sort_keys=True).encode())
    for name in CONFIGS:
        if (file := folder / name).is_file():
            digest.update(_canonical(file.read_bytes()))
    for path in weights:
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            header = opened.read(length)
            digest.update(header)
            for begin, end in _sampled(json.loads(header)):
                opened.seek(LENGTH_BYTES + length + max(begin, (begin + end - SAMPLE_BYTES) // 2))
                digest.update(opened.read(min(SAMPLE_BYTES, end - begin)))
    return digest.hexdigest()


def _sampled(header: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return where the tensors begin and end of which a sample is read, in the order of the file."""
    spans = sorted(tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
    return spans[:: -(-len(spans) // MAX_TENSORS) or 1]


def _canonical(data: bytes) -> bytes:
    """Return a JSON object without entries that have no effect, in one spelling; other bytes as they are."""
    try:
        fields = json.loads(data)
    except ValueError:
        return data
    if not isinstance(fields, dict):
        return data
    kept = {name: value for name, value in fields.items() if name not in WITHOUT_EFFECT}
    return json.dumps(kept, sort_keys=True).encode()
