"""Recorded requests: their files, one for each client, and the references in them to ids of earlier answers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
REFERENCE = re.compile(r"\$\{(\d+):([^}]+)\}")


@dataclass(frozen=True)
class Recorded:
    """One request of a client.

    Attributes:
        case: the part of the client's script that made it; `make clients` prints the names.
        body: the JSON; None without a body. In it and in the path, `${0:id}` stands for the member `id` of the answer
            to the case's first request.
        status: of the answer.
    """

    case: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int


def write(client: str, version: str, requests: list[Recorded]) -> None:
    """Write the file of a client."""
    FOLDER.mkdir(exist_ok=True)
    content = {"client": client, "version": version, "requests": [asdict(each) for each in requests]}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (FOLDER / f"{client}.json").write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, list[Recorded]]:
    """Return the requests of a file by case."""
    cases: dict[str, list[Recorded]] = {}
    for fields in json.loads(path.read_text(encoding="utf-8"))["requests"]:
        cases.setdefault(fields["case"], []).append(Recorded(**fields))
    return cases


def event_datas(text: str) -> list[Any]:
    """Return the data of each event of a stream, without [DONE]."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
