"""Typed extraction: texts in, pydantic objects out. Every answer has the requested form.

python examples/extract.py
"""

from typing import Literal

from pydantic import BaseModel, Field

import radixrt

PROMPT = (
    "<|im_start|>system\nYou extract data about people from sentences, as JSON.<|im_end|>\n"
    "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
)
TEXTS = (
    "Maria Silva, 34, is a nurse in Lisbon. She speaks Portuguese and English.",
    "My name is Kenji Tanaka. I am 52 years old, I live in Osaka and teach Japanese.",
    "Anna Berg, a 28-year-old developer from Oslo, writes Norwegian, English and German.",
)


class Person(BaseModel):
    """A person described by a text."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=120)
    city: str = Field(max_length=40)
    profession: str | None = Field(max_length=40)
    languages: list[Literal["English", "German", "Japanese", "Norwegian", "Portuguese"]] = Field(
        min_length=1, max_length=3
    )


def main() -> None:
    with radixrt.Engine() as engine:
        prompts = [PROMPT.format(text=text) for text in TEXTS]
        for answer in engine.generate(prompts, {"max_tokens": 120, "temperature": 0}, json_schema=Person):
            person = answer.parsed
            assert isinstance(person, Person)
            print(repr(person))
            assert answer.constraint is not None
            print(f"  {len(answer.token_ids)} tokens, {answer.constraint.forced_tokens} of them forced by the schema")

        # The same with far too few tokens: the answer is shorter, and still a Person.
        cut = engine.generate(prompts[0], {"max_tokens": 24, "temperature": 0}, json_schema=Person)
        print(f"cut: {cut.text} (finish_reason {cut.finish_reason!r}, forced_close {cut.forced_close})")

        # A choice among a few words, and a text that matches a regular expression.
        mood = engine.generate("The food was cold. Sentiment:", {"temperature": 0}, choices=["positive", "negative"])
        date = engine.generate("Christmas 2024 is on", {"temperature": 0}, regex="[0-9]{4}-[0-9]{2}-[0-9]{2}")
        print(f"choice: {mood.parsed}  regex: {date.parsed}")


if __name__ == "__main__":
    main()
