"""Examples for `radixrt calibrate`: JSON lines of requests to /v1/systemone with their right answers.

A line is a body of /v1/systemone with one more member, `answers`: for each question to learn from, true or false of a
noul, the option of a choice, the number of a score's level.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from radixrt.calibrate.fit import Example
from radixrt.errors import ConfigError, shown


class Line(NamedTuple):
    """A line of the file.

    Attributes:
        place: the file and the number of the line, for errors.
        body: body of the request.
        answers: the right answers by the names of the questions.
    """

    place: str
    body: dict[str, Any]
    answers: dict[str, Any]


def read_lines(path: str) -> list[Line]:
    """Return the lines of a file; empty lines are left out.

    Raises:
        ConfigError: the file cannot be read, or a line is wrong; names the line and the member.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            lines.append(_read(line, f"{path}, line {number}"))
    if not lines:
        raise ConfigError(f"{path} has no examples")
    return lines


def _read(line: str, place: str) -> Line:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{place} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"{place} must be an object, not {shown(body)}")
    questions, answers = body.get("questions"), body.pop("answers", None)
    if not isinstance(questions, dict) or not isinstance(answers, dict) or not answers:
        raise ConfigError(f"{place} needs the members state, questions and answers, as objects by name")
    for name in answers:
        if name not in questions:
            raise ConfigError(f"{place}: answers has {shown(name)}, which is none of the questions")
    return Line(place, body, answers)


def examples_of(line: Line, answers: dict[str, dict[str, Any]]) -> Iterator[Example]:
    """Yield the examples of a line.

    Args:
        answers: the member `answers` of the server's response, at temperature 1.

    Raises:
        ConfigError: a right answer is none of the question's answers; names the line and the question.
    """
    for name, right in line.answers.items():
        given = answers[name]
        if given["type"] == "noul":
            labels, values = ["true", "false"], [given["noul"], 1.0 - given["noul"]]
            label = {True: "true", False: "false"}.get(right) if isinstance(right, bool) else None
        else:
            labels, values = list(given["probabilities"]), list(given["probabilities"].values())
            label = right if isinstance(right, str) or given["type"] == "choice" else str(right)
        if label not in labels:
            raise ConfigError(
                f"{line.place}: the answer to {shown(name)} must be one of {', '.join(labels)}, not {shown(right)}"
            )
        # A probability that is too small for a float counts as the smallest one.
        yield Example([math.log(max(value, 1e-300)) for value in values], labels.index(label))
