"""Classification of 10,000 rows, with the plain OpenAI client.

python examples/tour/plain/classify.py --size 400
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import openai
from tqdm import tqdm

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import EXAMPLES, LABELS, rows

OUTPUT = kit.output("plain_labels.jsonl")


def labelled_before() -> dict[int, dict[str, Any]]:
    if not OUTPUT.exists():
        return {}
    found, whole = {}, 0
    for line in OUTPUT.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        entry = json.loads(line)
        found[entry["index"]] = entry
    with OUTPUT.open("rb+") as file:
        file.truncate(whole)
    return found


async def label(client: openai.AsyncOpenAI, model: str, message: str) -> str:
    for attempt in range(3):
        try:
            answer = await client.completions.create(
                model=model, prompt=f"{EXAMPLES}Message: {message}\nTopic:", temperature=0, max_tokens=8,
                extra_body={"structured_outputs": {"choice": [f" {label}" for label in LABELS]}},
            )  # fmt: skip
            return answer.choices[0].text
        except openai.APIError:
            if attempt == 2:
                raise
            await asyncio.sleep(0.25 * 2**attempt)
    raise AssertionError


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    done = labelled_before()
    labels: dict[int, str] = {}
    remaining = iter(enumerate(rows(size)))
    with OUTPUT.open("a") as file, tqdm(total=size, disable=None) as bar:

        async def work() -> None:
            for index, message in remaining:
                before = done.get(index)
                if before is None or before["input"] != message:
                    before = {"index": index, "input": message, "label": await label(client, model, message)}
                    file.write(json.dumps(before) + "\n")
                    file.flush()
                labels[index] = before["label"]
                bar.update()

        await asyncio.gather(*(work() for _ in range(32)))
    return [f"{sum(each == f' {label}' for each in labels.values())} {label}" for label in LABELS]


if __name__ == "__main__":
    kit.plain(run, __doc__, size=10_000)
