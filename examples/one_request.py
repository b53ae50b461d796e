"""One request at each station of the engine: the messages that carry it, with their numbers.

python examples/one_request.py

The components of the engine run in this thread, connected as in `radixrt.engine.in_process`, and print the messages
that they receive. docs/engine_in_an_hour.md explains the output, in which nothing depends on the machine.
"""

from __future__ import annotations

import re
from typing import Any

from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine.assembly import make_runner_worker, make_scheduler_loop, make_tokenizer
from radixrt.engine.settings import resolve_settings
from radixrt.executor.uniproc_executor import UniProcExecutor
from radixrt.messages.client import (
    ClientRequest,
    InputRow,
    OutputBatch,
    RequestOutput,
    TextInput,
    ToMain,
    ToTokenizer,
)
from radixrt.messages.request import Envelope, Request
from radixrt.messages.runner import ForwardStep, FromRunner, StepOutput
from radixrt.messages.scheduler import TokenBatch, TokenDelta, ToScheduler
from radixrt.messages.wire import unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.server.answers.completions import Choice, CompletionEncoder
from radixrt.server.answers.parts import TokenReport

PROMPT = "one two three four five six seven"
MODES = {1: "EXTEND", 2: "DECODE"}


def ids(column: bytes) -> str:
    """Return an int32 column as text."""
    return str(unpack_i32(column).tolist())


def show(message: Any) -> None:
    """Print a message if it carries a request or a step."""
    if isinstance(message, ClientRequest):
        print(f"main -> tokenizer       ClientRequest {message.rid} {PROMPT!r}")
    elif isinstance(message, Request):
        print(f"tokenizer -> scheduler  Request {message.rid} ids={message.tokens(0).tolist()}")
    elif isinstance(message, ForwardStep):
        print(f"scheduler -> runner     ForwardStep {message.step_id} {MODES[message.mode]}")
        print("\n".join(f"                          {line}" for line in columns(message)))
    elif isinstance(message, StepOutput):
        print(f"runner -> scheduler     StepOutput {message.step_id} token_ids={ids(message.token_ids)}")
    elif isinstance(message, TokenBatch):
        for rid, token in zip(message.rids, unpack_i32(message.token_ids).tolist(), strict=True):
            print(f"scheduler -> tokenizer  TokenBatch rids=[{rid}] token_ids=[{token}]")
        for delta in message.deltas:
            print(f"scheduler -> tokenizer  TokenDelta {delta.rid} token_ids={ids(delta.token_ids)} {ended(delta)}")
    elif isinstance(message, OutputBatch):
        for output in message.outputs:
            print(f"tokenizer -> main       RequestOutput {output.rid} text={output.text!r}")


def columns(step: ForwardStep) -> list[str]:
    """Return the columns of a step that are not empty."""
    names = ("req_pool_idx", "seq_lens", "out_cache_loc", "extend_lens", "input_ids")
    found = [f"{name}={ids(column)}" for name in names if (column := getattr(step, name))]
    if step.samples:
        found.append(f"samples={list(step.samples)}")
    found += [f"row_write row={w.req_pool_idx} start={w.start} slots={ids(w.slots)}" for w in step.row_writes]
    found += [f"sampling_row row={r.req_pool_idx} temperature={r.draw.temperature}" for r in step.sampling_rows]
    return [*found, f"sections={step.sections}"]


def ended(delta: TokenDelta) -> str:
    if delta.finish is None or delta.usage is None:
        return ""
    used = delta.usage
    counts = f"prompt={used.prompt_tokens} cached={used.cached_tokens} output={used.completion_tokens}"
    return f"finish={delta.finish.reason} {counts}"


class PrintingChannel(LocalChannel[Any]):
    """Channel that encodes each message, as between processes, and prints it where it is received."""

    def recv(self, timeout_s: float | None = 0.0) -> Any:
        message = super().recv(timeout_s)
        show(message)
        return message


class PrintingExecutor(UniProcExecutor):
    """Executor that prints each step before the ModelRunner computes it."""

    def submit(self, step: ForwardStep) -> None:
        show(step)
        super().submit(step)


class Engine:
    """The components of an engine, each of which runs when `turn` calls it."""

    def __init__(self) -> None:
        options = {"executor": "uni", "device": "cpu", "dtype": "float32", "kv_cache_tokens": 1024}
        config, settings = resolve_settings(make_config(**options), show_progress=False)
        self.to_tokenizer, self.to_main = PrintingChannel(ToTokenizer), PrintingChannel(ToMain)
        to_scheduler, answers = PrintingChannel(ToScheduler), PrintingChannel(FromRunner)
        self._executor = PrintingExecutor(make_runner_worker(config, settings, answers), answers)
        self._tokenizer = make_tokenizer(config, settings, to_scheduler, self.to_main)
        self._loop = make_scheduler_loop(config, settings, self._executor, to_scheduler, self.to_tokenizer)
        self._model = settings.model_name

    def turn(self) -> list[RequestOutput]:
        """Run the tokenizer and one turn of the scheduler's loop; return the outputs that reached the main process."""
        while (message := self.to_tokenizer.recv()) is not None:
            self._tokenizer.handle(message)
        self._loop.run_once(wait=False)
        outputs: list[RequestOutput] = []
        while (reply := self.to_main.recv()) is not None:
            if isinstance(reply, OutputBatch):
                outputs += reply.outputs
        return outputs

    def complete(self, rid: str, max_tokens: int) -> None:
        """Send the prompt, and print the events of /v1/completions with its outputs."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        self.to_tokenizer.send(ClientRequest(Envelope(rid), [InputRow(TextInput(PROMPT))], sampling, stream=True))
        choice = Choice(0, None, False, TokenReport())
        encoder = CompletionEncoder(f"cmpl-{rid}", self._model, [choice], sampled=1, wanted=1, include_usage=False)
        finished = False
        while not finished:
            for output in self.turn():
                event = encoder.event(0, output).decode().strip()
                print("main -> client          " + re.sub(r'"created":\d+', '"created":...', event))
                finished = output.finish is not None
        print("main -> client          " + encoder.last_event().decode().strip())

    def close(self) -> None:
        self._loop.close()
        self._executor.close()


def main() -> None:
    engine = Engine()
    try:
        engine.complete("a", max_tokens=3)
        print()
        engine.complete("b", max_tokens=1)  # the same prompt, which is in the radix tree now
    finally:
        engine.close()


if __name__ == "__main__":
    main()
