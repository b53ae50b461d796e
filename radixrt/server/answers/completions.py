"""Answers of /v1/completions, and `CompletionEncoder`, which makes them from the outputs of a request."""

from __future__ import annotations

import codecs
import time
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from radixrt.messages.client import RequestOutput
from radixrt.messages.reads import TokenLogprob as LogprobRow
from radixrt.server.answers.base import DONE, Answer, around_choices, data_event, encode
from radixrt.server.answers.parts import (
    Enforcement,
    PromptMembers,
    TokenReport,
    Usage,
    UsageSum,
    clean_logprob,
    enforcement,
    finish_reason,
    stop_reason,
)

Prompt = str | list[int]


class LegacyLogprobs(Answer):
    """Log-probabilities as parallel lists, one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(PromptMembers, kw_only=True):
    """One completion, or a part of it in a stream."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[int] | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    radixrt: Enforcement | UnsetType = UNSET


class Completion(Answer, kw_only=True):
    """Answer of /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None


class CompletionChunk(Answer, kw_only=True):
    """Data of one event of a stream; the chunk with the usage has no choices."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[CompletionChoice] = []
    usage: Usage | UnsetType | None = UNSET


# --- from outputs ---


class Choice:
    """One choice of the response, whole or as parts of a stream, with the state for text offsets and echo.

    Args:
        echo: the prompt to put in front, or None.
    """

    def __init__(self, index: int, echo: Prompt | None, with_logprobs: bool, report: TokenReport) -> None:
        self.report = report
        self._begun = False
        self.index = index
        self._echo = echo
        self._with_logprobs = with_logprobs
        self._chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def part(self, output: RequestOutput) -> CompletionChoice:
        """Build the choice for one output. With echo, the choice of the first output begins with the prompt."""
        text = output.text
        rows: list[LogprobRow] = []
        if self._echo is not None:
            text = self._echoed(self._echo, output.prompt_logprobs or []) + text
            rows += output.prompt_logprobs or []
            self._echo = None
        rows += output.logprobs or []
        about = {} if self._begun else self.report.about_prompt(output)
        self._begun = True
        logprobs = self._legacy_logprobs(rows) if self._with_logprobs else None
        part = CompletionChoice(
            index=self.index, text=text, logprobs=logprobs, token_ids=self.report.of_output(output), **about
        )
        if output.finish is not None:
            part.finish_reason = finish_reason(output.finish)
            part.stop_reason = stop_reason(output.finish)
            part.radixrt = enforcement(output)
        return part

    @staticmethod
    def _echoed(prompt: Prompt, rows: list[LogprobRow]) -> str:
        if isinstance(prompt, str):
            return prompt
        return b"".join(row.data for row in rows).decode("utf-8", "replace")

    def _legacy_logprobs(self, rows: list[LogprobRow]) -> LegacyLogprobs:
        """OpenAI's older form: parallel lists, alternatives as {text: logprob}; the chosen token is among them.

        text_offset counts characters from the start of the choice's text, over the tokens' bytes: a character that
        spans tokens begins where its last byte does.
        """
        offsets: list[int] = []
        for row in rows:
            offsets.append(self._chars)
            self._chars += len(self._decoder.decode(row.data))
        return LegacyLogprobs(
            [self.report.name(row) for row in rows],
            [clean_logprob(row.logprob) for row in rows],
            [_alternatives(row, self.report) for row in rows],
            offsets,
        )


def _alternatives(row: LogprobRow, report: TokenReport) -> dict[str, float | None] | None:
    if row.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for top in (*row.top, row):
        found.setdefault(report.name(top), clean_logprob(top.logprob))
    return found


def _mean_logprob(output: RequestOutput) -> float:
    """Mean log-probability of the tokens that were sampled; 0 if there are none."""
    known = [row.logprob for row in output.logprobs or [] if row.logprob is not None]
    return sum(known) / len(known) if known else 0.0


class CompletionEncoder:
    """Encodes the outputs of a completion request; constant parts of a stream are encoded once.

    Args:
        sampled, wanted: numbers of completions of each prompt that are sampled and that are returned, those with the
            highest mean log-probability.
        include_usage: a stream ends with the usage.
    """

    def __init__(
        self, answer_id: str, model: str, choices: list[Choice], *, sampled: int, wanted: int, include_usage: bool
    ) -> None:
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._choices = choices
        self._sampled = sampled
        self._wanted = wanted
        self._include_usage = include_usage
        self._usage = UsageSum(sampled)
        self._chunk = CompletionChunk(
            id=answer_id, created=self._created, model=model, usage=None if include_usage else UNSET
        )
        self._before, self._after = around_choices(self._chunk)
        self._texts: dict[int, tuple[bytes, bytes]] = {}

    def body(self, outputs: list[RequestOutput]) -> Completion:
        for choice, output in zip(self._choices, outputs, strict=True):
            self._usage.add(choice.index, output.usage)
        whole: list[CompletionChoice] = []
        for first in range(0, len(outputs), self._sampled):
            each = list(range(first, first + self._sampled))
            if self._wanted < self._sampled:
                each = sorted(each, key=lambda i: -_mean_logprob(outputs[i]))[: self._wanted]
            for i in each:
                part = self._choices[i].part(outputs[i])
                part.index = len(whole)
                whole.append(part)
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=whole, usage=self._usage.total()
        )

    def event(self, index: int, output: RequestOutput) -> bytes:
        choice = self._choices[index]
        text = self._texts.get(index)
        if text is not None and output.finish is None and not output.logprobs and not choice.report.ids:
            return text[0] + encode(output.text) + text[1] if output.text else b""
        if text is None:
            # The text is the only empty string behind the id and the model.
            before, _, after = self._event(CompletionChoice(index=index, text="")).rpartition(b'""')
            self._texts[index] = before, after
        part = choice.part(output)
        self._usage.add(index, output.usage)
        return self._event(part) if part.text or part.finish_reason or part.logprobs or part.token_ids else b""

    def last_event(self) -> bytes:
        if not self._include_usage:
            return DONE
        return data_event(msgspec.structs.replace(self._chunk, usage=self._usage.total())) + DONE

    def _event(self, choice: CompletionChoice) -> bytes:
        return self._before + encode(choice) + self._after
