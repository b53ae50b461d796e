"""Typed extraction: invoices in, checked pydantic objects out, a CSV file at the end.

python examples/invoices_to_csv.py

Each result either has the requested type or is an error that names the problem; there is no third case. The form is
guaranteed, the facts are the model's.
"""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Literal

import common
from pydantic import BaseModel, Field

import radixrt as rt


class Invoice(BaseModel):
    seller: str = Field(max_length=40)
    number: str = Field(pattern="^[A-Z0-9-]{1,10}$")
    date: datetime.date
    total: float = Field(ge=0, le=99_999)
    currency: Literal["EUR", "GBP", "USD"]


EXAMPLES = {
    "Miller Books\nInvoice 5520 of 2026-02-01\n\n4 x Notebook, 3.00 each\n\nTotal: 12.00 EUR\n": Invoice(
        seller="Miller Books", number="5520", date=datetime.date(2026, 2, 1), total=12, currency="EUR"
    ),
    "Ada Bikes\nBill A-31\nDate: 2025-11-24\n\n1 x Bell, 8.00\n2 x Light, 15.20 each\n\nTotal: 38.40 GBP\n": Invoice(
        seller="Ada Bikes", number="A-31", date=datetime.date(2025, 11, 24), total=38.4, currency="GBP"
    ),
}


@rt.function(temperature=0)
def extract(s: rt.State, text: str) -> None:
    s += rt.system("You write down what stands in an invoice as JSON.")
    for example, invoice in EXAMPLES.items():
        s += rt.user(example) + rt.assistant(invoice.model_dump_json())
    s += rt.user(text) + rt.assistant(rt.gen("invoice", Invoice))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--folder", type=Path, default=common.DATA / "invoices", help="with the invoices (*.txt)")
    parser.add_argument("--output", type=Path, help="one row for each; default: output/invoices.csv")
    args = parser.parse_args()
    output = args.output or common.output("invoices.csv")
    paths = sorted(args.folder.glob("*.txt"))
    with common.backend(args):
        results = extract.batch([path.read_text() for path in paths])
        with output.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["file", *Invoice.model_fields])
            writer.writeheader()
            for path, result in zip(paths, results, strict=True):
                if result.error:
                    print(f"{path.name}: {result.error}")
                    continue
                invoice: Invoice = result["invoice"]
                print(f"{path.name}: {invoice!r}")
                writer.writerow({"file": path.name, **invoice.model_dump()})
        states = [result.state for result in results if result.state]
        written = sum(state.usage.completion_tokens for state in states)
        forced = sum(state.usage.forced_tokens for state in states)
        print(f"{output}: {written} tokens were written, of which the schema left no choice about {forced}")
        print(common.reuse(*states))


if __name__ == "__main__":
    main()
