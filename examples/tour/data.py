"""Data of the tour: short texts that a small model can work on, and as many of them as a script asks for."""

from __future__ import annotations

import itertools

GUESTS = ("Ada Moss", "Ben Hall", "Cleo Ray", "Dan Fox", "Eva Lind", "Finn Oak", "Gus Bell", "Hana Ito")
MAILS = [
    f"Dear hotel, this is {guest}. I would like a room from 2026-0{1 + i % 9}-1{i % 9} and leave on "
    f"2026-0{1 + i % 9}-{20 + i % 8}. A quiet room, please, and breakfast on both days. Many thanks."
    for i, guest in enumerate(GUESTS)
]

PASSAGES = [
    "A parcel within the country arrives after two working days. On Saturdays we deliver until noon.",
    "A parcel that has not arrived after five days is searched for; the sender reports it with the parcel number.",
    "A refund is paid within seven days to the account from which the order was paid.",
    "Goods that were opened can be returned within fourteen days if nothing is missing.",
    "Gift cards are valid for three years and cannot be exchanged for money.",
    "The shop in the harbour is open from Monday to Friday, from nine to six.",
    "Orders above fifty euros are sent free of charge within the country.",
    "Customers from abroad pay the customs duties of their country themselves.",
]
QUESTIONS = [
    "How long does a refund take?", "Do you deliver on Saturdays?", "My parcel is late. What do I do?",
    "Can I return an opened box?", "How long is a gift card valid?", "When is the shop open?",
    "Is delivery free for 60 euros?", "Who pays customs duties?",
]  # fmt: skip

ESSAYS = [
    f"{place} should have more trees. Trees give shade in summer, they slow the wind, and they drink the water that "
    "would otherwise run into cellars. A study of forty streets found that a street with trees was three degrees "
    "cooler at noon. Trees cost money: someone has to plant them and to sweep the leaves. But a street without them "
    "costs more, because people do not walk there, and shops close."
    for place in ("Our town", "The harbour", "The school", "The market", "The station", "The valley")
]
JUDGES = ("a strict teacher", "a friendly editor", "a busy reader")

TASKS = [
    f"How many people live in {a} and {b} together?" for a, b in itertools.permutations(("Oslo", "Rome", "Lima"), 2)
]
PEOPLE = {"Oslo": 717_000, "Rome": 2_755_000, "Lima": 10_092_000}

REPORTS = [
    f"Report of the {team} team. In spring we moved to the new building, which took two weeks longer than planned. "
    f"The {team} work itself went well: we answered nine of ten requests on the same day. Two colleagues left, and we "
    "found one new one. The old machine stopped twice in June; a spare part is ordered and should be here in autumn. "
    "Next year we want to train everybody on the new system, and to close the old archive."
    for team in ("sales", "repair", "travel", "garden", "kitchen", "library", "transport", "printing")
]

SHOTS = (
    "Q: A box holds 4 pens. How many pens are in 3 boxes?\nA: 3 boxes of 4 pens are 12 pens. The answer is 12.\n"
    "Q: Tom has 9 apples and eats 2. How many are left?\nA: 9 less 2 is 7. The answer is 7.\n"
    "Q: A train has 5 cars with 20 seats each. How many seats?\nA: 5 times 20 is 100. The answer is 100.\n"
    "Q: Ann reads 6 pages a day. How many in a week?\nA: A week has 7 days, and 7 times 6 is 42. The answer is 42.\n"
)
PROBLEMS = [f"A bag holds {3 + i} oranges. How many oranges are in {2 + i} bags?" for i in range(8)]

TRIPS = ("a picnic in the park", "a day at the sea", "a birthday at home", "a walk in the hills")

LABELS = ("billing", "delivery", "technical")
_SENTENCES = (
    "I was charged twice for order {}.", "My parcel {} has not arrived.", "The app shows error {}.",
    "The invoice {} has the wrong name.", "The box of order {} came open.", "I cannot log in; the code is {}.",
)  # fmt: skip
SHOWN = (
    ("I was charged twice this month.", "billing"), ("The parcel is three days late.", "delivery"),
    ("The app crashes when I open it.", "technical"), ("Where is my package?", "delivery"),
    ("Please send me a copy of the invoice.", "billing"), ("I cannot log in since the update.", "technical"),
)  # fmt: skip
EXAMPLES = "".join(f"Message: {message}\nTopic: {label}\n\n" for message, label in SHOWN)


def rows(size: int) -> list[str]:
    """Customers' messages, all different."""
    return [_SENTENCES[i % len(_SENTENCES)].format(10_000 + i) for i in range(size)]


TOPICS = ("the sea", "bread", "trains", "the moon", "bees", "glass", "rivers", "paper")
READERS = ("a child", "a nurse", "a farmer")

PRODUCTS = ("a bicycle bell", "a lamp for reading", "a rain coat", "a lunch box", "a wooden toy", "a garden chair")
