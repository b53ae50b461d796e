"""Questions as calls of the engine, and their usage: what /v1/decisions and /v1/systemone have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from radixrt.messages.parts import ChatPrompt
from radixrt.messages.request import Envelope
from radixrt.server.answers.decisions import QuestionUsage
from radixrt.server.answers.parts import InputDetails, cached_tokens_details
from radixrt.tasks.run import add_usage
from radixrt.tasks.score import Decision, Score


class Asked(Protocol):
    """A question in the form that the engine scores."""

    @property
    def prompt(self) -> ChatPrompt: ...

    @property
    def answers(self) -> Sequence[str]: ...


def score_calls(asked: Iterable[Asked], envelope: Envelope) -> list[Score]:
    """Return a call for each question. The ids of the calls begin with the id of the request."""
    return [
        Score(each.prompt, each.answers, msgspec.structs.replace(envelope, rid=f"{envelope.rid}-q{i}"))
        for i, each in enumerate(asked)
    ]


def question_usage(found: Decision) -> QuestionUsage:
    """Return the tokens of one question's prompt."""
    return QuestionUsage(found.usage.prompt_tokens, found.usage.cached_tokens)


def prompt_usage(found: Iterable[Decision]) -> tuple[int, InputDetails]:
    """Return the number of tokens of the prompts of all questions, and where they came from."""
    usage = add_usage([decision.usage for decision in found])
    tokens, cached = usage.prompt_tokens, usage.cached_tokens
    return tokens, InputDetails(cached, tokens - cached, cached_tokens_details(usage))
