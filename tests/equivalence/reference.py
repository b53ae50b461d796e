"""The ground truth: transformers' own greedy `generate`, one prompt at a time, on the CPU in float32."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch


@lru_cache(maxsize=8)
def reference_model(folder: Path):  # type: ignore[no-untyped-def]
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = "AutoModelForImageTextToText" if hasattr(config, "vision_config") else "AutoModelForCausalLM"
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.do_sample = False
    return model


@lru_cache(maxsize=4096)
def _greedy(folder: Path, prompt: tuple[int, ...], max_new: int) -> tuple[int, ...]:
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        out = reference_model(folder).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new,
            min_new_tokens=max_new,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=0,
        )
    return tuple(out[0, len(prompt) :].tolist())


def greedy(folder: Path, prompt: list[int], max_new: int) -> list[int]:
    """The next max_new tokens after the prompt, end tokens not allowed (as with min_tokens = max_tokens)."""
    return list(_greedy(folder, tuple(prompt), max_new))


def greedy_continuation(folder: Path, prompt: list[int], answer: list[int]) -> list[int]:
    """The greedy choice at each position of an answer, given the prompt and the answer up to there.

    It equals the answer exactly if the answer is `greedy(folder, prompt, len(answer))`, and costs one forward pass.
    """
    return list(_continuation(folder, tuple(prompt), tuple(answer)))


@lru_cache(maxsize=4096)
def _continuation(folder: Path, prompt: tuple[int, ...], answer: tuple[int, ...]) -> tuple[int, ...]:
    logits = reference_logits(folder, [*prompt, *answer[:-1]])[len(prompt) - 1 :].clone()
    ends = reference_model(folder).generation_config.eos_token_id
    logits[:, ends] = -torch.inf
    return tuple(logits.argmax(-1).tolist())


def reference_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """float32 [len(ids), vocab]."""
    with torch.inference_mode():
        return reference_model(folder)(torch.tensor([ids])).logits[0]
