"""Scoring, tokenizing and detokenizing requests in the worker: valid requests continue, others end with their error."""

from __future__ import annotations

import pytest

from radixrt.messages.client import DetokenizeReq, RequestOutput, ScoreReq, TokenizeReq
from radixrt.messages.parts import ChatPrompt, Finish, TemplateText
from radixrt.messages.request import Request
from radixrt.messages.scheduler import TokenBatch, TokenDelta
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.requests import scores as answer
from tests.tokenizer.worker_bench import CONTEXT, Bench


def send(bench: Bench, req: ScoreReq) -> Request:
    bench.handle(req)
    sent = bench.scheduler.recv()
    assert isinstance(sent, Request)
    return sent


def score(bench: Bench, req: ScoreReq, scores: list[float]) -> RequestOutput:
    sent = send(bench, req)
    assert sum(len(row.logprobs.targets) // 4 for row in sent.rows) == len(scores)
    bench.handle(TokenBatch([TokenDelta(req.rid, finish=Finish("stop"), values=answer(scores))]))
    (delta,) = bench.deltas()
    return delta


def test_choices_of_one_token_are_one_row(bench: Bench) -> None:
    ids = pack_i32([5, 6])
    delta = score(bench, ScoreReq("r", ["a", "b", "c"], input_ids=ids), [-3.0, -1.0, -2.0])
    assert delta.prompt_ids == ids
    assert delta.decision is not None
    assert delta.decision.choice == 1
    assert delta.decision.logprobs == [-3.0, -1.0, -2.0]
    assert delta.decision.kept == 2
    assert bench.worker.num_live == 0


def test_each_choice_gets_the_scores_of_its_own_tokens(bench: Bench) -> None:
    a, b, c = "q", "qz", "qzq"
    sent = send(bench, ScoreReq("r", [c, a, b], prompt="the ", method="unconditional_likelihood_normalized"))
    assert len(sent.prefixes) == 2
    assert unpack_i32(sent.prefixes[1]).tolist() == [bench.tokenizer.token_to_id("<|im_start|>")]
    values = [float(-(10**i)) for i in range(sum(len(row.logprobs.targets) // 4 for row in sent.rows))]
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("stop"), values=answer(values))]))
    (delta,) = bench.deltas()
    assert delta.decision is not None
    long, short, middle = delta.decision.logprobs
    assert long < middle < short < 0
    assert delta.decision.token_ids[0][: len(delta.decision.token_ids[1])] == delta.decision.token_ids[1]


def test_the_boundary_is_healed(bench: Bench) -> None:
    open_, closed = ScoreReq("a", ["fox", "dog"], prompt="the "), ScoreReq("b", [" fox", " dog"], prompt="the")
    first, second = send(bench, open_), send(bench, closed)
    assert first.prefixes == second.prefixes == [pack_i32(bench.tokenizer.encode("the"))]
    assert first.rows == second.rows


def test_a_choice_is_never_a_control_token(bench: Bench) -> None:
    sent = send(bench, ScoreReq("r", ["<|im_end|>", "x"], parts=["hi ", TemplateText("<|im_start|>user\n")]))
    end = bench.tokenizer.token_to_id("<|im_end|>")
    assert all(end not in unpack_i32(row.logprobs.targets) for row in sent.rows)


OK = ["a", "b"]
BAD = {
    "no choices": (ScoreReq("r", [], prompt="a"), "choices"),
    "too many choices": (ScoreReq("r", [str(i) for i in range(10_001)], prompt="a"), "choices"),
    "empty choice": (ScoreReq("r", ["a", ""], prompt="a"), "choices[1]"),
    "same choice twice": (ScoreReq("r", ["a", "b", "a"], prompt="a"), "choices[2]"),
    "no prompt": (ScoreReq("r", OK), "prompt"),
    "two prompts": (ScoreReq("r", OK, prompt="a", input_ids=pack_i32([1])), "prompt"),
    "empty prompt": (ScoreReq("r", OK, prompt=""), "prompt"),
    "nothing stays of the prompt": (ScoreReq("r", ["he", "x"], prompt="t"), "prompt"),
    "ids beyond the vocabulary": (ScoreReq("r", OK, input_ids=pack_i32([10**6])), "input_ids"),
    "id in a part": (ScoreReq("r", OK, parts=["a", [10**6]]), "input_parts[1]"),
    "prompt too long": (ScoreReq("r", OK, input_ids=pack_i32([5] * CONTEXT)), "input_ids"),
    "choice too long": (ScoreReq("r", ["a", "x " * 60], input_ids=pack_i32([5] * 50)), "choices[1]"),
    "choice far too long": (ScoreReq("r", ["a", "word " * 1_000_000], prompt="a"), "choices[1]"),
    "bad conversation": (ScoreReq("r", OK, chat=ChatPrompt(b"[]")), "messages"),
    "rid with NUL": (ScoreReq("r\0", OK, prompt="a"), "rid"),
    "no time": (ScoreReq("r", OK, prompt="a", timeout_s=0.0), "timeout_s"),
    "tokens of no prompt": (TokenizeReq("r"), "prompt"),
    "tokens beyond the vocabulary": (DetokenizeReq("r", pack_i32([10**6])), "tokens"),
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
    bench.handle(ScoreReq("r", ["x" * 60, "y" * 60], prompt="a"))
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert delta.finish.error.param == "choices"


def test_a_failed_request_has_no_decision(bench: Bench) -> None:
    send(bench, ScoreReq("r", OK, input_ids=pack_i32([5])))
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("abort"))]))
    (delta,) = bench.deltas()
    assert delta.decision is None
    assert delta.finish == Finish("abort")


def test_scores_that_do_not_fit_end_that_request_alone(bench: Bench) -> None:
    send(bench, ScoreReq("r", OK, input_ids=pack_i32([5])))
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("stop"), values=answer([]))]))
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert delta.finish.error.status == 500
    bench.start()


def test_tokenize_and_detokenize(bench: Bench) -> None:
    text = "The quick <|im_end|>"
    bench.handle(TokenizeReq("t", prompt=text))
    (delta,) = bench.deltas()
    ids = bench.tokenizer.encode(text)
    assert delta.prompt_ids == pack_i32(ids)
    for skip, expected in ((True, "The quick "), (False, text)):
        bench.handle(DetokenizeReq("d", pack_i32(ids), skip))
        (delta,) = bench.deltas()
        assert delta.text == expected
        assert delta.finish == Finish("stop")
    bench.handle(DetokenizeReq("d", b""))
    (delta,) = bench.deltas()
    assert delta.text == ""


@pytest.mark.parametrize("family", ["byte_fallback", "gemma_like", "unigram", "word_piece"])
def test_every_family_scores_what_it_would_tokenize(loaded: dict[str, Tokenizer], family: str) -> None:
    bench = Bench(loaded[family])
    prompt, choices = "The quick brown", [" fox jumps", " dog", " it"]
    sent = send(bench, ScoreReq("r", choices, prompt=prompt))
    prefix = unpack_i32(sent.prefixes[0]).tolist()
    bench.handle(TokenBatch([TokenDelta("r", finish=Finish("stop"), values=answer([-1.0] * _edges(sent)))]))
    (delta,) = bench.deltas()
    assert delta.decision is not None
    for ids, choice in zip(delta.decision.token_ids, choices, strict=True):
        assert prefix + ids == [*loaded[family].prefix_ids, *loaded[family].encode(prompt + choice, False)]


def _edges(sent: Request) -> int:
    return sum(len(row.logprobs.targets) // 4 for row in sent.rows)
