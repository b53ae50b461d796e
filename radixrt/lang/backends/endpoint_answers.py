"""What a radixrt server's native routes answer, as results and errors of the language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Delta, Result
from radixrt.messages.client import TokenLogprob
from radixrt.messages.parts import ConstraintInfo, Timings, Usage

SAMPLING = "sampling_params."


@dataclass
class Reading:
    """Puts a completion together from its answer, or from the pieces of a stream."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    logprobs: list[TokenLogprob] | None = None
    finish: dict[str, Any] | None = None
    new: tuple[str, list[int]] = ("", [])
    meta: dict[str, Any] = field(default_factory=dict)

    def add(self, answer: dict[str, Any]) -> None:
        """Take the answer, or one more piece of it."""
        self.new = answer["text"], answer["output_ids"]
        self.text += answer["text"]
        self.token_ids += answer["output_ids"]
        self.prompt_ids = answer.get("prompt_ids", self.prompt_ids)
        self.meta = answer["meta_info"]
        self.finish = self.meta["finish_reason"]
        if "output_token_logprobs" in self.meta:
            rows = zip(self.meta["output_token_logprobs"], self.meta["output_top_logprobs"], strict=True)
            self.logprobs = (self.logprobs or []) + [_logprob(row, top) for row, top in rows]

    def delta(self) -> Delta:
        """What came last."""
        return Delta(*self.new)

    def result(self) -> Result:
        """The whole result, once `finish` is set."""
        meta, finish = self.meta, self.finish
        assert finish is not None
        enforced = meta.get("radixrt")
        return Result(
            text=self.text,
            token_ids=self.token_ids,
            prompt_ids=self.prompt_ids,
            finish_reason=finish["type"],
            usage=usage_of(meta),
            timings=Timings(meta["queue_s"], meta["prefill_s"], meta["decode_s"], meta["retractions"]),
            matched_stop=finish["matched"],
            logprobs=self.logprobs,
            forced_close=enforced is not None and enforced["forced_close"],
            constraint=None if enforced is None else _constraint(enforced),
            kept=meta.get("kept"),
            tail=meta.get("tail", ""),
        )


def usage_of(meta: Mapping[str, Any]) -> Usage:
    """What `meta_info` says of it."""
    return Usage(meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"])


def _constraint(enforced: Mapping[str, Any]) -> ConstraintInfo:
    return ConstraintInfo(
        backend=enforced["backend"],
        ignored=enforced["ignored"],
        forced_tokens=enforced["forced_tokens"],
        closing_tokens=enforced["closing_tokens"],
    )


def _logprob(row: Sequence[Any], top: Sequence[Sequence[Any]] = ()) -> TokenLogprob:
    logprob, token_id, text = row
    return TokenLogprob(token_id, text, text.encode(), logprob, [_logprob(other) for other in top])


def decoded(data: bytes) -> Any:
    """The JSON value. Raises EngineError if it is none."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise EngineError(f"the server's answer is not JSON: {error}; is it a radixrt server?") from None


def refusal_of(status: int, body: bytes, path: str) -> RequestError:
    """What an answer with another status than 200 says."""
    try:
        return error_of(msgspec.json.decode(body)["error"], status)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        what = body[:200].decode(errors="replace")
        return RequestError(f"{path} answered with status {status}: {what}; is it a radixrt server?", status=status)


def error_of(body: Mapping[str, Any], status: int) -> RequestError:
    """In the words of `SamplingParams`, which this route has one level down."""
    message, param = str(body["message"]), body.get("param")
    if param is not None:
        message, param = message.removeprefix(SAMPLING), param.removeprefix(SAMPLING)
    return RequestError(message, param=param, code=body.get("code"), status=status)
