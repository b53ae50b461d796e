"""Extraction with retry, with the plain OpenAI client.

python examples/tour/plain/extraction.py --base-url http://127.0.0.1:30000
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from pathlib import Path
from typing import Annotated, Any

import openai
import pydantic

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import MAILS


class Booking(pydantic.BaseModel):
    guest: Annotated[str, pydantic.Field(max_length=24)]
    arrival: datetime.date
    departure: datetime.date

    @pydantic.model_validator(mode="after")
    def leaves_later(self) -> Booking:
        if self.departure <= self.arrival:
            raise ValueError("the departure must be later than the arrival")
        return self


SCHEMA = Booking.model_json_schema()
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "booking", "strict": True, "schema": SCHEMA}}


async def extract(client: openai.AsyncOpenAI, model: str, slots: asyncio.Semaphore, mail: str) -> Booking | str:
    messages: list[Any] = [
        {"role": "system", "content": "You write down the bookings in mails to a hotel."},
        {"role": "user", "content": mail},
    ]
    reason = ""
    for _ in range(3):
        async with slots:
            answer = await client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=96, response_format=FORMAT
            )
        text = answer.choices[0].message.content or ""
        try:
            return Booking.model_validate_json(text)
        except pydantic.ValidationError as error:
            reason = "; ".join(one["msg"] for one in error.errors())
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": f"This answer is not accepted: {reason}\nAnswer again."})
    return reason


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    slots = asyncio.Semaphore(32)
    return await asyncio.gather(*(extract(client, model, slots, mail) for mail in MAILS[:size]))


if __name__ == "__main__":
    kit.plain(run, __doc__, size=8)
