"""transformers' greedy output and logits for prompts with images, whose position ids transformers computes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import torch

from radixrt.messages.images import RowImage, image_keys
from radixrt.messages.request import Envelope, Request, Row
from radixrt.messages.wire import pack_i32
from radixrt.models.model_config import load_model_spec
from radixrt.models.vision.normalization import read_normalization
from radixrt.sampling_params import SamplingParams
from tests.models.vision.reference import _normalized, _qwen_patches, random_pixels, reference_model


@dataclass(frozen=True)
class Picture:
    """A processed image of random pixels."""

    height: int
    width: int
    seed: int = 0

    @property
    def pixels(self) -> torch.Tensor:
        """uint8 [height, width, 3]."""
        return random_pixels(self.height, self.width, self.seed)


Part = int | Picture


def request(
    rid: str, folder: Path, files: Path, parts: Sequence[Part], *, cache_salt: str = "", **sampling: object
) -> Request:
    """Return a request of tokens and images, whose pixels are written into a folder."""
    spec = load_model_spec(folder).vision
    assert spec is not None
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        data = part.pixels.numpy().tobytes()
        digest = hashlib.sha256(f"{part.height} {part.width} ".encode() + data).digest()
        path = files / digest.hex()
        path.write_bytes(data)
        rows, columns = spec.grid(part.height, part.width)
        count = rows * columns
        images.append(RowImage(len(ids), count, rows, columns, part.height, part.width, digest, str(path)))
        ids += image_keys(digest, count).tolist()
    made = Request.continue_prompt(
        Envelope(rid, cache_salt=cache_salt),
        pack_i32(ids),
        SamplingParams(**{"temperature": 0.0, **sampling}),  # type: ignore[arg-type]
    )
    row: Row = msgspec.structs.replace(made.rows[0], images=images)
    return msgspec.structs.replace(made, rows=[row])


@torch.inference_mode()
def logits(folder: Path, parts: Sequence[Part], answer: Sequence[int] = ()) -> torch.Tensor:
    """Return float32 [length, vocab], transformers' logits after each token of the prompt and the answer."""
    spec = load_model_spec(folder).vision
    assert spec is not None
    ids: list[int] = []
    grids, patches = [], []
    normalization = read_normalization(folder, spec)
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        rows, columns = spec.grid(part.height, part.width)
        ids += [spec.image_token_id] * (rows * columns)
        normal = _normalized(part.pixels, normalization)
        grids.append([1, part.height // spec.patch, part.width // spec.patch])
        patches.append(_qwen_patches(normal, spec) if spec.kind == "qwen_vl" else normal)
    tokens = torch.tensor([[*ids, *answer]])
    kinds = (tokens == spec.image_token_id).int()
    kinds[0, len(ids) :] = 0  # an image token that was sampled is text
    inputs: dict[str, torch.Tensor] = {}
    if patches and spec.kind == "qwen_vl":
        inputs = {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids), "mm_token_type_ids": kinds}
    elif patches:
        stacked = torch.stack(patches)
        inputs = {"pixel_values": stacked[None] if spec.kind == "idefics3" else stacked}
    found: torch.Tensor = reference_model(folder)(tokens, **inputs).logits[0]
    return found


@lru_cache(maxsize=512)
def greedy(folder: Path, parts: tuple[Part, ...], max_new: int) -> tuple[int, ...]:
    """Return transformers' greedy answer, in which neither an end token nor a token of images may occur."""
    spec, model = load_model_spec(folder), load_model_spec(folder).vision
    assert model is not None
    answer: list[int] = []
    for _ in range(max_new):
        last = logits(folder, parts, answer)[-1].clone()
        last[[*spec.eos_token_ids, model.image_token_id, *model.marker_ids]] = -torch.inf
        answer.append(int(last.argmax()))
    return tuple(answer)
