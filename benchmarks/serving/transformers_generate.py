"""Table "transformers' own generate" of docs/benchmarks.md: batched `generate` on the prompts of the serving workloads.

    python -m benchmarks.serving.transformers_generate MODEL_FOLDER --rounds 2

Offline, in static batches: batches have the workload's concurrency, are padded on the left, and end together, without
continuous batching and without reuse between batches. The turns of `multi-turn` run one after another, all
conversations in a batch. `json` is excluded, because `generate` takes no schema. Nothing is streamed, so there is no
TTFT or TPOT; prompt tokens are counted without the padding, and `client CPU` includes the model.
"""

import argparse
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.common import machine
from benchmarks.serving import workloads
from benchmarks.serving.report import Run, Summary, comparison, run_header, run_row
from benchmarks.serving.workloads import Messages, Workload

NAMES = tuple(name for name in workloads.STANDARD if name != "json")


class BatchedGenerator:
    """Greedy answers of exactly the asked length for a batch of chats."""

    def __init__(self, folder: str, dtype: torch.dtype) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        defaults = self._model.generation_config
        defaults.pad_token_id, defaults.eos_token_id = self._tokenizer.pad_token_id, None

    @torch.inference_mode()
    def answer(self, chats: Sequence[Messages], max_tokens: int) -> tuple[list[str], int]:
        """The texts, and the number of prompt tokens without padding."""
        batch = self._tokenizer.apply_chat_template(
            list(chats), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        out = self._model.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
        width = batch["input_ids"].shape[1]
        assert out.shape[1] == width + max_tokens, "an answer ended early"
        texts = self._tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
        return texts, int(batch["attention_mask"].sum())


def measure(generator: BatchedGenerator, job: Workload) -> Summary:
    """Runs one workload; tokenizing, the chat template and decoding are inside the time, as they are for a server."""
    start, cpu = time.perf_counter(), time.process_time()
    prompt_tokens = 0
    for first in range(0, len(job.conversations), job.concurrency):
        talks = job.conversations[first : first + job.concurrency]
        chats: list[Messages] = [talk.opening() for talk in talks]
        for turn in range(len(talks[0].users)):
            for chat, talk in zip(chats, talks, strict=True):
                chat.append({"role": "user", "content": talk.users[turn]})
            texts, tokens = generator.answer(chats, job.max_tokens)
            prompt_tokens += tokens
            for chat, text in zip(chats, texts, strict=True):
                chat.append({"role": "assistant", "content": text})
    wall = time.perf_counter() - start
    output_tokens = job.requests * job.max_tokens
    return Summary(job.name, job.requests, wall, prompt_tokens, output_tokens, client_cpu=time.process_time() - cpu)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.transformers_generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a Hugging Face folder")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--workload", action="append", choices=NAMES, help="may be repeated (default: all of them)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, help="as for benchmarks.serving (default: a new one)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of each workload's conversations, to try things"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    start = time.perf_counter()
    generator = BatchedGenerator(args.model, getattr(torch, args.dtype))
    print(f"loaded after {time.perf_counter() - start:.1f} s", flush=True)
    generator.answer([[{"role": "user", "content": "Hello"}]], 8)
    runs = []
    for r in range(args.rounds):
        print(f"\nround {r}, seed {seed + r}\n{run_header()}", flush=True)
        run = Run("transformers generate", r, seed + r)
        for name in args.workload or NAMES:
            run.summaries.append(measure(generator, workloads.build(name, seed + r).scaled(args.scale)))
            print(run_row(run.summaries[-1]), flush=True)
        runs.append(run)
    if len(runs) > 1:
        print(f"\nMedians of {args.rounds} rounds\n\n{comparison(runs)}")
    memory = machine.tree_memory(os.getpid())
    print(f"\nmemory: RSS {memory.rss:.0f}, peak {memory.peak:.0f} MiB")


if __name__ == "__main__":
    main()
