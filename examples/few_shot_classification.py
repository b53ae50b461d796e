"""Few-shot classification of a file: one program, many items, an output file that can be resumed.

python examples/few_shot_classification.py
python examples/few_shot_classification.py    # again: all items are done already

The few-shot examples are the same for each item, so they are computed once.
"""

from __future__ import annotations

import json
from pathlib import Path

import common

import radixrt as rt

LABELS = ("billing", "delivery", "technical")
SHOTS = (
    ("I was charged twice this month.", "billing"),
    ("The parcel is three days late.", "delivery"),
    ("The app crashes when I open it.", "technical"),
    ("Where is my package?", "delivery"),
    ("Please send me a copy of the invoice.", "billing"),
    ("I cannot log in since the update.", "technical"),
)


@rt.function
def classify(s: rt.State, text: str) -> None:
    for message, label in SHOTS:
        s += f"Message: {message}\nTopic: {label}\n\n"
    # `select` does not sample: it scores each choice exactly, all choices in one step after the shared prompt.
    s += f"Message: {text}\nTopic:" + rt.select("label", [" " + label for label in LABELS])


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--input", type=Path, default=common.DATA / "messages.jsonl", help='lines of {"text", "label"}')
    parser.add_argument("--output", type=Path, help="one line of JSON for each item; default: output/labels.jsonl")
    args = parser.parse_args()
    output = args.output or common.output("labels.jsonl")
    items = [json.loads(line) for line in args.input.read_text().splitlines()]

    with common.backend(args):
        # If an item fails, its line holds the error, and the others continue. `resume` keeps the lines that exist.
        results = classify.batch([item["text"] for item in items], concurrency=16, output=output, resume=True)

        right = 0
        for item, result in zip(items, results, strict=True):
            label = result["label"].strip()
            right += label == item["label"]
            print(f"{label:10} {'(had it)' if result.resumed else '':8} {item['text']}")
        print(f"{right} of {len(items)} as labelled; {sum(r.resumed for r in results)} were in {output} before")
        # States of thousands of items would fill the memory, so with an output file the usage of each item is in it.
        used = [json.loads(line)["usage"] for line in output.read_text().splitlines()]
        print(common.reuse_line(*(sum(u[k] for u in used) for k in ("calls", "prompt_tokens", "cached_tokens"))))


if __name__ == "__main__":
    main()
