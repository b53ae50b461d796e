"""`QUESTIONS`: beginnings of sentences with four possible ends each, of which one is right."""

from __future__ import annotations

CAPITALS = (
    "France Paris", "Germany Berlin", "Italy Rome", "Spain Madrid", "Portugal Lisbon", "Greece Athens",
    "Austria Vienna", "Poland Warsaw", "Hungary Budapest", "Sweden Stockholm", "Norway Oslo", "Finland Helsinki",
    "Ireland Dublin", "Russia Moscow", "Turkey Ankara", "Egypt Cairo", "Kenya Nairobi", "Japan Tokyo",
    "China Beijing", "India Delhi", "Thailand Bangkok", "Canada Ottawa", "Cuba Havana", "Peru Lima", "Chile Santiago",
)  # fmt: skip
OPPOSITES = (
    "hot cold", "big small", "fast slow", "light dark", "happy sad", "old young", "rich poor", "wet dry", "early late",
    "hard soft", "open closed", "full empty", "strong weak", "high low", "north south", "up down", "left right",
    "first last", "long short", "war peace", "love hate", "buy sell", "win lose", "day night", "true false",
)  # fmt: skip
KINDS = (
    "salmon fish", "eagle bird", "oak tree", "rose flower", "hammer tool", "piano instrument", "copper metal",
    "mosquito insect", "apple fruit", "carrot vegetable", "Python language", "Mars planet", "football sport",
    "shirt garment", "truck vehicle", "diamond gem", "cobra snake", "wine drink", "sofa furniture", "dollar currency",
    "pistol weapon", "tango dance", "square shape", "purple color", "whale mammal",
)  # fmt: skip
SUMS = tuple((a, b) for a in range(2, 12, 2) for b in range(3, 13, 2))

Question = tuple[str, tuple[str, ...], int]
"""The beginning, the choices and the index of the right one."""


def _from_pairs(sentence: str, pairs: tuple[str, ...]) -> list[Question]:
    """Return a question for each pair; the wrong choices are the ends of the pairs behind it."""
    split = [pair.split() for pair in pairs]
    questions = []
    for i, (word, _) in enumerate(split):
        choices = [f" {split[(i + step) % len(split)][1]}" for step in range(4)]
        place = i % 4  # of the right one
        choices[0], choices[place] = choices[place], choices[0]
        questions.append((sentence.format(word), tuple(choices), place))
    return questions


QUESTIONS: tuple[Question, ...] = (
    *_from_pairs("The capital of {} is", CAPITALS),
    *_from_pairs("The opposite of {} is", OPPOSITES),
    *_from_pairs("{} is a kind of", KINDS),
    *((f"{a} plus {b} is", tuple(f" {a + b + off - (a + b) % 4}" for off in range(4)), (a + b) % 4) for a, b in SUMS),
)
