"""A 4-bit model on a laptop: answers of a GGUF file whose weights stay packed, and their memory and speed.

python examples/laptop_4bit.py
python examples/laptop_4bit.py --quantization none                  # the same weights, expanded to bfloat16
python examples/laptop_4bit.py --model ./Qwen3-4B-Q4_K_M.gguf
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import radixrt

CHAT = (
    "<|im_start|>system\nYou answer in one short sentence.<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)
QUESTIONS = [f"What is the capital of {place}?" for place in ("France", "Japan", "Italy", "Egypt")]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", help="a GGUF file; default: the embedded model, whose file is in Q4_1")
    options.add_argument("--quantization", default="auto", help="auto: as the file has them; none: expanded")
    args = options.parse_args()
    prompts = [CHAT.format(question=question) for question in QUESTIONS]
    params = {"max_tokens": 24, "min_tokens": 24, "temperature": 0}
    # The engine is in this process, with a KV cache as small as these answers need, so that most memory is weights.
    with radixrt.Engine(
        model=args.model,
        dtype="bfloat16",
        device="cpu",
        quantization=args.quantization,
        kv_cache_tokens=2048,
        executor="uni",
        log_level="warning",
    ) as engine:
        engine.generate(prompts, params)  # the first run of a shape is slower
        engine.flush_cache()
        began = time.perf_counter()
        answers = engine.generate(prompts, params)
        rate = len(prompts) * 24 / (time.perf_counter() - began)
        for question, answer in zip(QUESTIONS, answers, strict=True):
            print(f"{question} {answer.text.partition(chr(10))[0]}")
        print(f"{memory()} in memory, {rate:.0f} tokens/s in {len(prompts)} answers at once")


def memory() -> str:
    """Return the memory of this process that no file backs (Linux)."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return "? MiB"
    kib = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("RssAnon:"))
    return f"{kib / 1024:.0f} MiB"


if __name__ == "__main__":
    main()
