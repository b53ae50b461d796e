"""A folder of receipts, as pictures, into typed rows, with a progress bar; a second run goes on where the first ended.

python examples/receipts_to_rows.py --model Qwen/Qwen3-VL-2B-Instruct
python examples/receipts_to_rows.py --base-url http://127.0.0.1:30000    # a server of a model that reads pictures

Without --folder the example draws four receipts. The instructions before each picture are computed once.
"""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Literal

import common
from PIL import Image, ImageDraw, ImageFont
from pydantic import BaseModel, Field

import radixrt as rt

RECEIPTS = {
    "bakery": "CORNER BAKERY\n2026-03-02\n\nbread     4.20\ncake      6.00\n\nTOTAL EUR 10.20\nCARD",
    "books": "MILLER BOOKS\n2026-03-05\n\nnotebook 12.00\n\nTOTAL GBP 12.00\nCASH",
    "garage": "ADA GARAGE\n2026-02-27\n\nbell      8.00\nlights   30.40\n\nTOTAL EUR 38.40\nCARD",
    "tea": "TEA HOUSE\n2026-03-09\n\ntea 2 x 3.50\n\nTOTAL USD 7.00\nCASH",
}


class Receipt(BaseModel):
    shop: str = Field(max_length=40)
    date: datetime.date
    total: float = Field(ge=0, le=99_999)
    currency: Literal["EUR", "GBP", "USD"]
    paid_by: Literal["card", "cash"]


@rt.function(temperature=0)
def read(s: rt.State, path: str) -> None:
    s += rt.system("You write down what stands on a receipt as JSON.")
    s += rt.user("The receipt: " + rt.image(path)) + rt.assistant(rt.gen("receipt", Receipt))


def draw(folder: Path) -> None:
    """Draw the receipts of this example into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in RECEIPTS.items():
        image = Image.new("RGB", (320, 280), "white")
        ImageDraw.Draw(image).multiline_text((24, 20), text, "black", ImageFont.load_default(22), spacing=6)
        image.save(folder / f"{name}.png")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--folder", type=Path, help="with the receipts (*.png, *.jpg); default: four that are drawn")
    parser.add_argument("--output", type=Path, help="a line of JSON for each receipt; default: output/receipts.jsonl")
    args = parser.parse_args()
    folder, output = args.folder, args.output or common.output("receipts.jsonl")
    if folder is None:
        folder = common.output("receipts")
        draw(folder)
    if not folder.is_dir():
        parser.error(f"--folder: there is no folder {folder}")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))
    if not paths:
        parser.error(f"--folder: {folder} has no pictures (*.png, *.jpg, *.jpeg, *.webp)")

    with common.backend(args):
        # If a picture cannot be read, its line holds the error, and the next run tries it again.
        results = read.batch([str(path) for path in paths], concurrency=8, output=output, resume=True)
        table = output.with_suffix(".csv")
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["file", *Receipt.model_fields])
            writer.writeheader()
            for path, result in zip(paths, results, strict=True):
                if result.error:
                    print(f"{path.name}: {result.error}")
                    continue
                receipt: Receipt = result["receipt"]  # of this type, also where the line was written by an earlier run
                print(f"{path.name}: {receipt!r}{' (had it)' if result.resumed else ''}")
                writer.writerow({"file": path.name, **receipt.model_dump()})
        print(f"{table}: {sum(not result.error for result in results)} of {len(paths)} receipts")
        used = [result.usage for result in results if result.usage]  # none of a line that an earlier run wrote
        names = ("calls", "prompt_tokens", "cached_tokens")
        print(common.reuse_line(*(sum(getattr(each, name) for each in used) for name in names)))


if __name__ == "__main__":
    main()
