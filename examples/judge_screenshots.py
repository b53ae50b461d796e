"""A judge of two screenshots: a branch for each criterion, all of which share the two pictures.

python examples/judge_screenshots.py --model Qwen/Qwen3-VL-2B-Instruct
python examples/judge_screenshots.py --base-url http://127.0.0.1:30000    # a server of a model that reads pictures

Without --before and --after the example draws two versions of a page. The pictures are sent and decoded once, and their
tokens are computed once for all criteria.
"""

from __future__ import annotations

from pathlib import Path

import common
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import radixrt as rt

CRITERIA = {
    "contrast": "On which page is the text easier to tell from its background?",
    "spacing": "On which page do the elements have more room around them?",
    "buttons": "On which page is it clearer what can be clicked?",
}
CHOICES = ("the first", "the second")


@rt.function(temperature=0)
def judge(s: rt.State, first: object, second: object) -> dict[str, float]:
    """Return the probability that the second page is the better one, for each criterion."""
    s += rt.user("The first page: " + rt.image(first) + "\nThe second page: " + rt.image(second))
    views = s.fork(CRITERIA)
    for view, criterion in views.items():
        view += rt.user(f"{CRITERIA[criterion]} Answer with {CHOICES[0]} or {CHOICES[1]}.")
        # Both choices are scored exactly after the same prompt: no answer is sampled or parsed.
        view += rt.assistant(rt.select("better", CHOICES))
        view += rt.user("Why? One sentence.") + rt.assistant(rt.gen("reason", max_tokens=32, stop="\n"))
    return {key: view.meta["better"].probabilities[1] for view, key in views.items()}


def page(text: str, background: str, margin: int, button: str) -> np.ndarray:
    """Return a page as an array, as tools that make screenshots do."""
    image = Image.new("RGB", (384, 256), background)
    pencil, font = ImageDraw.Draw(image), ImageFont.load_default(20)
    pencil.text((margin, margin), "Your order", text, font)
    pencil.text((margin, margin + 32 + margin // 2), "2 books, 24.00 EUR", text, font)
    pencil.rectangle((margin, 190, margin + 120, 190 + 40), button)
    pencil.text((margin + 30, 198), "Pay now", "white", font)
    return np.asarray(image)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--before", type=Path, help="picture of the first page; default: a page that is drawn")
    parser.add_argument("--after", type=Path, help="picture of the second page; default: a page that is drawn")
    args = parser.parse_args()
    first = args.before or page("#999999", "#cccccc", 4, "#bbbbbb")
    second = args.after or page("#111111", "#ffffff", 28, "#1a56db")
    with common.backend(args):
        state = judge.run(first, second)
        for criterion, probability in state.returned.items():
            print(f"{criterion:10} {probability:4.0%} for the second page")
        print(state.report())
        print(common.reuse(state))


if __name__ == "__main__":
    main()
