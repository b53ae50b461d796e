"""Classification of 10,000 rows, with a progress bar, and resumed where it was stopped.

python examples/tour/classify.py --size 400
"""

from __future__ import annotations

from typing import Any

import kit
from data import EXAMPLES, LABELS, rows

import radixrt as rt

OUTPUT = kit.output("tour_labels.jsonl")


@rt.function
def classify(s: rt.State, message: str) -> None:
    s += f"{EXAMPLES}Message: {message}\nTopic:" + rt.select("label", [f" {label}" for label in LABELS])


def run(size: int) -> list[Any]:
    labelled = classify.batch(rows(size), output=OUTPUT, resume=True, retries=2)
    return [f"{sum(item.values.get('label') == f' {label}' for item in labelled)} {label}" for label in LABELS]


if __name__ == "__main__":
    kit.main(run, __doc__, size=10_000)
