"""Scoring, tokenizing and detokenizing requests in the worker: valid requests continue, others end with their error."""

from __future__ import annotations

import pytest

from radixrt.messages.client import ClientRequest, RequestOutput, TextInput
from radixrt.messages.parts import ChatPrompt, Finish, SelectMethod, TemplateText
from radixrt.messages.request import Envelope, Request
from radixrt.messages.scheduler import TokenBatch, TokenDelta
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.tasks.score import Decision, Score
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.client_requests import detokenizing, scoring, tokenizing
from tests.requests import scores as answer
from tests.tokenizer.worker_bench import CONTEXT, Bench


def send(bench: Bench, req: ClientRequest) -> Request:
    bench.handle(req)
    sent = bench.scheduler.recv()
    assert isinstance(sent, Request)
    return sent


def score(bench: Bench, req: ClientRequest, scores: list[float]) -> RequestOutput:
    sent = send(bench, req)
    assert sum(len(row.logprobs.targets) // 4 for row in sent.rows) == len(scores)
    bench.handle(TokenBatch([TokenDelta(req.rid, finish=Finish("stop"), values=answer(scores))]))
    (delta,) = bench.deltas()
    return delta


def decided(choices: list[str], output: RequestOutput, method: SelectMethod = "token_length_normalized") -> Decision:
    """What the task makes of the output."""
    return Score(TextInput("the prompt"), choices, Envelope("r"), method).answer([output])


def test_choices_of_one_token_are_one_row(bench: Bench) -> None:
    ids = pack_i32([5, 6])
    delta = score(bench, scoring("r", ["a", "b", "c"], input_ids=ids), [-3.0, -1.0, -2.0])
    assert delta.prompt_ids == ids
    decision = decided(["a", "b", "c"], delta)
    assert decision.choice == 1
    assert decision.logprobs == [-3.0, -1.0, -2.0]
    assert decision.kept == 2
    assert bench.worker.num_live == 0


def test_each_choice_gets_the_scores_of_its_own_tokens(bench: Bench) -> None:
    a, b, c = "q", "qz", "qzq"
    sent = send(bench, scoring("r", [c, a, b], prompt="the ", method="unconditional_likelihood_normalized"))
    assert len(sent.prefixes) == 2
    assert unpack_i32(sent.prefixes[1]).tolist() == [bench.tokenizer.token_to_id("<|im_start|>")]
    values = [float(-(10**i)) for i in range(sum(len(row.logprobs.targets) // 4 for row in sent.rows))]
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("stop"), values=answer(values))]))
    (delta,) = bench.deltas()
    decision = decided([c, a, b], delta, "unconditional_likelihood_normalized")
    long, short, middle = decision.logprobs
    assert long < middle < short < 0
    assert decision.token_ids[0][: len(decision.token_ids[1])] == decision.token_ids[1]


def test_the_boundary_is_healed(bench: Bench) -> None:
    open_, closed = scoring("a", ["fox", "dog"], prompt="the "), scoring("b", [" fox", " dog"], prompt="the")
    first, second = send(bench, open_), send(bench, closed)
    assert first.prefixes == second.prefixes == [pack_i32(bench.tokenizer.encode("the"))]
    assert first.rows == second.rows


def test_a_choice_is_never_a_control_token(bench: Bench) -> None:
    sent = send(bench, scoring("r", ["<|im_end|>", "x"], parts=["hi ", TemplateText("<|im_start|>user\n")]))
    end = bench.tokenizer.token_to_id("<|im_end|>")
    assert all(end not in unpack_i32(row.logprobs.targets) for row in sent.rows)


OK = ["a", "b"]
BAD = {
    "no choices": (scoring("r", [], prompt="a"), "choices"),
    "too many choices": (scoring("r", [str(i) for i in range(10_001)], prompt="a"), "choices"),
    "empty choice": (scoring("r", ["a", ""], prompt="a"), "choices[1]"),
    "same choice twice": (scoring("r", ["a", "b", "a"], prompt="a"), "choices[2]"),
    "empty prompt": (scoring("r", OK, prompt=""), "prompt"),
    "nothing stays of the prompt": (scoring("r", ["he", "x"], prompt="t"), "prompt"),
    "ids beyond the vocabulary": (scoring("r", OK, input_ids=pack_i32([10**6])), "input_ids"),
    "id in a part": (scoring("r", OK, parts=["a", [10**6]]), "input_parts[1]"),
    "prompt too long": (scoring("r", OK, input_ids=pack_i32([5] * CONTEXT)), "input_ids"),
    "choice too long": (scoring("r", ["a", "x " * 60], input_ids=pack_i32([5] * 50)), "choices[1]"),
    "choice far too long": (scoring("r", ["a", "word " * 1_000_000], prompt="a"), "choices[1]"),
    "bad conversation": (scoring("r", OK, chat=ChatPrompt(b"[]")), "messages"),
    "rid with NUL": (scoring("r\0", OK, prompt="a"), "rid"),
    "no time": (scoring("r", OK, prompt="a", timeout_s=0.0), "timeout_s"),
    "tokens beyond the vocabulary": (detokenizing("r", pack_i32([10**6])), "tokens"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_ends_with_its_error(bench: Bench, name: str) -> None:
    message, param = BAD[name]
    bench.handle(message)
    assert bench.scheduler.recv() is None
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert (delta.finish.error.param, delta.finish.error.status) == (param, 400)
    assert bench.worker.num_live == 0


def test_too_much_text_in_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.tokenizer.choices.MAX_TOKENIZED_CHARS", 100)
    bench.handle(scoring("r", ["x" * 60, "y" * 60], prompt="a"))
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert delta.finish.error.param == "choices"


def test_a_failed_request_has_no_decision(bench: Bench) -> None:
    send(bench, scoring("r", OK, input_ids=pack_i32([5])))
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("abort"))]))
    (delta,) = bench.deltas()
    assert delta.values is None
    assert delta.finish == Finish("abort")


def test_scores_that_do_not_fit_end_that_request_alone(bench: Bench) -> None:
    send(bench, scoring("r", OK, input_ids=pack_i32([5])))
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("stop"), values=answer([]))]))
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert delta.finish.error.status == 500
    bench.start()


def test_tokenize_and_detokenize(bench: Bench) -> None:
    text = "The quick <|im_end|>"
    bench.handle(tokenizing("t", prompt=text))
    (delta,) = bench.deltas()
    ids = bench.tokenizer.encode(text)
    assert delta.prompt_ids == pack_i32(ids)
    for skip, expected in ((True, "The quick "), (False, text)):
        bench.handle(detokenizing("d", pack_i32(ids), skip))
        (delta,) = bench.deltas()
        assert delta.text == expected
        assert delta.finish == Finish("stop")
    bench.handle(detokenizing("d", b""))
    (delta,) = bench.deltas()
    assert delta.text == ""


@pytest.mark.parametrize("family", ["byte_fallback", "gemma_like", "unigram", "word_piece"])
def test_every_family_scores_what_it_would_tokenize(loaded: dict[str, Tokenizer], family: str) -> None:
    bench = Bench(loaded[family])
    prompt, choices = "The quick brown", [" fox jumps", " dog", " it"]
    sent = send(bench, scoring("r", choices, prompt=prompt))
    prefix = unpack_i32(sent.prefixes[0]).tolist()
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("stop"), values=answer([-1.0] * _edges(sent)))]))
    (delta,) = bench.deltas()
    for ids, choice in zip(decided(choices, delta).token_ids, choices, strict=True):
        assert prefix + ids == [*loaded[family].prefix_ids, *loaded[family].encode(prompt + choice, False)]


def _edges(sent: Request) -> int:
    return sum(len(row.logprobs.targets) // 4 for row in sent.rows)
