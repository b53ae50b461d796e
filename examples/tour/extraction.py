"""Extraction with retry: a typed booking from each mail; what breaks a rule is corrected by the model.

python examples/tour/extraction.py --size 8
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import kit
import pydantic
from data import MAILS

import radixrt as rt


class Booking(pydantic.BaseModel):
    guest: Annotated[str, pydantic.Field(max_length=24)]
    arrival: datetime.date
    departure: datetime.date

    @pydantic.model_validator(mode="after")
    def leaves_later(self) -> Booking:
        if self.departure <= self.arrival:
            raise ValueError("the departure must be later than the arrival")
        return self


@rt.function(temperature=0, max_tokens=96)
def extract(s: rt.State, mail: str) -> None:
    s += rt.system("You write down the bookings in mails to a hotel.") + rt.user(mail)
    s += rt.assistant(rt.gen("booking", Booking, retries=2))


def run(size: int) -> list[Any]:
    return [item.error or item["booking"] for item in extract.batch(MAILS[:size])]


if __name__ == "__main__":
    kit.main(run, __doc__, size=8)
