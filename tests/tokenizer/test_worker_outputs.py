"""Outputs of the worker: tokens to text, stops, log-probabilities, and exactly one finish for each request."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, FinishError, LogprobColumns, ReadValues, Usage
from radixrt.messages.scheduler import AbortReq, TokenBatch, TokenDelta
from radixrt.messages.wire import pack_f32, pack_i32, unpack_i32
from radixrt.sampling_params import SamplingParams
from tests.client_requests import generating
from tests.tokenizer.worker_bench import TIMINGS, Bench


def test_streaming(bench: Bench) -> None:
    prompt = bench.start().rows[0].ids
    emoji = bench.tokenizer.encode("🙂")
    first = bench.tokens(emoji[:1])
    assert first == [RequestOutput("r", "", pack_i32(emoji[:1]), prompt_ids=prompt)]
    assert bench.tokens(emoji[1:]) == [RequestOutput("r", "🙂", pack_i32(emoji[1:]))]
    assert bench.tokens([]) == []
    last = bench.tokens("a", finish=Finish("length"))
    ids = pack_i32(bench.tokenizer.encode("a"))
    assert last == [RequestOutput("r", "a", ids, Finish("length"), Usage(9, 99, 5), TIMINGS, kept=len(emoji) + 1)]
    assert bench.tokens("late") == []
    assert bench.worker.num_live == 0


def test_not_streaming_gives_one_delta_with_everything(bench: Bench) -> None:
    prompt = bench.start(stream=False).rows[0].ids
    assert bench.tokens("one ") == bench.tokens("two ") == []
    (delta,) = bench.tokens("three", finish=Finish("length"))
    ids = [*bench.tokenizer.encode("one "), *bench.tokenizer.encode("two "), *bench.tokenizer.encode("three")]
    assert delta == RequestOutput(
        "r",
        "one two three",
        pack_i32(ids),
        Finish("length"),
        Usage(9, 99, 5),
        TIMINGS,
        prompt_ids=prompt,
        kept=len(ids),
    )


def outcome(
    bench: Bench, ids: list[int], sizes: list[int], finish: Finish, **options: Any
) -> tuple[str, list[int], Any]:
    """Text, token ids and finish that a client gets when the scheduler sends the ids in pieces of these sizes."""
    bench.start("r", **options)
    deltas, at, stopped = [], 0, False
    for size in itertools.cycle(sizes):
        last = at + size >= len(ids)
        deltas += bench.tokens(ids[at : at + size], finish=finish if last and not stopped else None)
        at += size
        if not stopped and bench.scheduler.recv() is not None:
            stopped = True
        if last:
            break
    if stopped:
        deltas += bench.tokens([], finish=Finish("abort"))
    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[0].prompt_ids is not None
    assert bench.worker.num_live == 0
    column = unpack_i32(b"".join(delta.output_ids for delta in deltas)).tolist()
    finish_sent, usage = deltas[-1].finish, deltas[-1].usage
    assert finish_sent is not None
    assert usage is not None
    if isinstance(finish_sent.matched, str):
        assert usage.completion_tokens == len(column)
    return "".join(delta.text for delta in deltas), column, finish_sent


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pieces_and_streaming_make_no_difference(bench: Bench, data: st.DataObject) -> None:
    letters = [bench.tokenizer.token_to_id(letter) or 0 for letter in "abÃ©"]  # the last two are the bytes of "é"
    ids = data.draw(st.lists(st.sampled_from(letters), max_size=20))
    stop = tuple(data.draw(st.lists(st.text("abé", min_size=1, max_size=4), max_size=3)))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    options: dict[str, Any] = {"stop": stop, "include_stop_str_in_output": data.draw(st.booleans())}
    expected = outcome(bench, ids, [1], Finish("length"), stream=True, **options)
    for stream in (True, False):
        assert outcome(bench, ids, sizes, Finish("length"), stream=stream, **options) == expected
    text, column, finish = expected
    whole = bench.tokenizer.decode(ids)
    if finish.reason == "length":
        assert text == whole
        assert column == ids
        assert not any(one in whole for one in stop)
    else:
        assert whole.startswith(text)
        assert finish.matched in stop
        before = bench.tokenizer.detokenizer().push(column[:-1])
        assert not any(one in before for one in stop)


def test_held_back_bytes_come_out_at_the_end(bench: Bench) -> None:
    bench.start()
    bench.tokens(bench.tokenizer.encode("🙂")[:1])
    assert bench.tokens([], finish=Finish("abort"))[0].text == "\ufffd"


@pytest.mark.parametrize(
    ("matched", "sampling", "text"),
    [
        ("<|im_end|>", {}, "bye"),
        ("<|im_end|>", {"skip_special_tokens": False}, "bye"),
        ("<|im_end|>", {"include_stop_str_in_output": True}, "bye"),
        ("<|im_end|>", {"include_stop_str_in_output": True, "skip_special_tokens": False}, "bye<|im_end|>"),
        ("<think>", {}, "bye"),
        ("<think>", {"include_stop_str_in_output": True}, "bye<think>"),
        (None, {"skip_special_tokens": False}, "bye"),  # an end token that the finish does not name
    ],
)
@pytest.mark.parametrize("stop", [(), ("never",)])
def test_the_stop_token_is_left_out_of_the_text(
    bench: Bench, matched: str | None, sampling: dict[str, Any], text: str, stop: tuple[str, ...]
) -> None:
    bench.start(stop=stop, **sampling)
    token = bench.tokenizer.token_to_id(matched or "<|im_end|>")
    ids = [*bench.tokenizer.encode("bye"), token or 0]
    (delta,) = bench.tokens(ids, finish=Finish("stop", token if matched else None))
    assert delta.text == text
    assert delta.output_ids == pack_i32(ids)


@pytest.mark.parametrize("stream", [False, True])
def test_without_detokenizing_there_are_ids_alone(bench: Bench, stream: bool) -> None:
    bench.start(detokenize=False, stream=stream)
    first, rest = bench.tokenizer.encode("good")[:1], bench.tokenizer.encode("bye 🙂")
    deltas = bench.tokens(first) + bench.tokens(rest, finish=Finish("length"))
    assert [delta.text for delta in deltas] == [""] * (2 if stream else 1)
    assert b"".join(delta.output_ids for delta in deltas) == pack_i32(first + rest)
    assert deltas[-1].finish == Finish("length")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_the_prompts_ids_does_not_get_them_again(bench: Bench, stream: bool) -> None:
    column = pack_i32(bench.tokenizer.encode("hi"))
    bench.handle(generating("r", SamplingParams(), input_ids=column, stream=stream, return_prompt_ids=False))
    deltas = bench.tokens("one") + bench.tokens("two", finish=Finish("length"))
    assert [delta.prompt_ids for delta in deltas] == [None] * len(deltas)


def test_a_finish_by_length_or_by_a_grammar_leaves_nothing_out(bench: Bench) -> None:
    for finish in (Finish("length"), Finish("stop")):
        bench.start()
        assert bench.tokens("bye", finish=finish)[0].text == "bye"


def test_a_stop_string_ends_the_text_and_waits_for_the_scheduler(bench: Bench) -> None:
    prompt = bench.start(stop=("END",))
    assert bench.tokens("some EN")[0].text == "some "
    (cut,) = bench.tokens("D and more")
    assert (cut.text, cut.finish) == ("", None)
    kept = len(unpack_i32(cut.output_ids))
    assert bench.tokenizer.decode(unpack_i32(cut.output_ids).tolist()) == "D"
    assert bench.scheduler.recv() == AbortReq("r", "stop")
    assert bench.tokens("ignored") == []
    assert bench.scheduler.recv() is None
    (last,) = bench.tokens("too", finish=Finish("stop"))
    completion = len(bench.tokenizer.encode("some EN")) + kept
    usage = Usage(len(prompt.tokens(0)), completion, 5)
    assert last == RequestOutput(
        "r", "", b"", Finish("stop", "END"), usage, TIMINGS, kept=len(bench.tokenizer.encode("some "))
    )


@pytest.mark.parametrize("reason", ["length", "stop", "abort"])
def test_a_stop_string_in_the_scheduler_s_last_delta_needs_no_abort(bench: Bench, reason: Any) -> None:
    bench.start(stream=False, stop=("END",))
    (delta,) = bench.tokens("some END and", finish=Finish(reason))
    assert delta.text == "some "
    assert delta.finish == Finish("stop", "END")
    assert delta.usage is not None
    assert delta.usage.completion_tokens * 4 == len(delta.output_ids)
    assert bench.scheduler.recv() is None
    assert bench.worker.num_live == 0


def test_a_stop_string_can_stay_in_the_text(bench: Bench) -> None:
    bench.start(stream=False, stop=("END",), include_stop_str_in_output=True)
    bench.tokens("some END and")
    assert bench.tokens([], finish=Finish("stop"))[0].text == "some END"


def test_text_that_no_stop_string_claimed_comes_out_at_the_end(bench: Bench) -> None:
    bench.start(stop=("END",))
    assert bench.tokens("some E")[0].text == "some "
    assert bench.tokens("N", finish=Finish("length"))[0].text == "EN"


def test_no_stop_string_is_seen_before_min_tokens(bench: Bench) -> None:
    bench.start(stop=("a",), min_tokens=3)
    (letter,) = bench.tokenizer.encode("a")
    assert bench.tokens([letter])[0].text == "a"
    assert bench.tokens([letter, letter, letter])[0].text == "a"
    assert bench.scheduler.recv() == AbortReq("r", "stop")
    (last,) = bench.tokens([], finish=Finish("stop"))
    assert last.usage is not None
    assert last.usage.completion_tokens == 3


def test_an_error_of_the_scheduler_reaches_the_client(bench: Bench) -> None:
    bench.start()
    finish = Finish("error", error=FinishError("queue full", None, "overloaded", 429))
    assert bench.tokens([], finish=finish)[0].finish == finish


def test_tokens_that_cannot_be_read_end_only_their_request(bench: Bench) -> None:
    bench.start("good")
    bench.start("r")
    column = pack_i32(bench.tokenizer.encode("a"))
    bad = TokenDelta("r", pack_i32([-1]))
    bench.handle(TokenBatch([TokenDelta("good", column), bad, TokenDelta("unknown", column)]))
    good, failed = bench.deltas()
    assert good.text == "a"
    assert failed.finish is not None
    assert failed.finish.error is not None
    assert failed.finish.error.status == 500
    assert bench.scheduler.recv() == AbortReq("r")
    assert bench.tokens("late") == bench.tokens([], finish=Finish("abort")) == []
    assert bench.worker.num_live == 1
    bench.start("r")


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_prompt_that_was_not_scored_to_its_end(bench: Bench, reason: Any) -> None:
    bench.start(prompt_logprobs=0, prompt="a long enough prompt")
    finish = Finish(reason, error=FinishError("deadline") if reason == "error" else None)
    (delta,) = bench.tokens([], values=ReadValues([columns([(-1.0, [])])]), finish=finish)
    assert delta.finish == finish
    assert delta.prompt_logprobs is None


def columns(rows: list[tuple[float, list[tuple[int, float]]]]) -> LogprobColumns:
    k = len(rows[0][1])
    top = [one for _, alternatives in rows for one in alternatives]
    return LogprobColumns(
        pack_f32([value for value, _ in rows]), pack_i32([i for i, _ in top]), pack_f32([v for _, v in top]), k
    )


def test_logprobs_stand_beside_their_tokens(bench: Bench) -> None:
    prompt = unpack_i32(bench.start(logprobs=2, prompt_logprobs=0, prompt="hi!").rows[0].ids).tolist()
    emoji = bench.tokenizer.encode("🙂")[:2]
    rows = [(-0.5, [(emoji[0], -0.5), (7, -2.0)]), (-math.inf, [(8, -0.25), (9, -4.0)])]
    of_prompt = columns([(-float(i), []) for i in range(1, len(prompt))])
    (delta,) = bench.tokens(emoji, logprobs=columns(rows), values=ReadValues([of_prompt]))
    assert delta.logprobs is not None
    assert delta.prompt_logprobs is not None
    assert [(one.token_id, one.logprob) for one in delta.logprobs] == [(emoji[0], -0.5), (emoji[1], -math.inf)]
    assert b"".join(one.data for one in delta.logprobs) == bench.tokenizer.token_bytes(
        emoji[0]
    ) + bench.tokenizer.token_bytes(emoji[1])
    assert delta.logprobs[0].text == "\ufffd"
    assert [(one.token_id, one.logprob) for one in delta.logprobs[1].top] == [(8, -0.25), (9, -4.0)]
    assert delta.prompt_logprobs[0].logprob is None
    assert [one.token_id for one in delta.prompt_logprobs] == prompt
    assert [one.logprob for one in delta.prompt_logprobs[1:]] == [-float(i) for i in range(1, len(prompt))]
    assert "".join(one.text for one in delta.prompt_logprobs) == "hi!"
    (last,) = bench.tokens([5], logprobs=columns([(-1.0, [(5, -1.0), (6, -3.0)])]), finish=Finish("length"))
    assert last.logprobs is not None
    assert len(last.logprobs) == 1
    assert last.prompt_logprobs is None


def test_logprobs_end_with_the_stop_string(bench: Bench) -> None:
    bench.start(stream=False, stop=("b",), logprobs=0)
    ids = [bench.tokenizer.token_to_id(char) or 0 for char in "abc"]
    bench.tokens(ids, logprobs=columns([(-1.0, []), (-2.0, []), (-3.0, [])]))
    (last,) = bench.tokens([], finish=Finish("stop"))
    assert last.logprobs is not None
    assert [one.text for one in last.logprobs] == ["a", "b"]
    assert last.text == "a"


def test_scoring_a_prompt_without_output(bench: Bench) -> None:
    prompt = unpack_i32(bench.start(stream=False, max_tokens=0, prompt_logprobs=1, prompt="hi!").rows[0].ids)
    rows = columns([(-1.0, [(5, -0.1)])] * (len(prompt) - 1))
    (delta,) = bench.tokens([], values=ReadValues([rows]), finish=Finish("length"))
    assert delta.prompt_logprobs is not None
    assert len(delta.prompt_logprobs) == len(prompt)
    assert delta.text == ""
    assert delta.output_ids == b""
    assert delta.logprobs is None


@pytest.mark.parametrize("wrong", [columns([(-1.0, [])] * 2), LogprobColumns(pack_f32([1.0]), b"", b"", 3)])
def test_columns_that_do_not_fit_end_the_request(bench: Bench, wrong: LogprobColumns) -> None:
    bench.start(logprobs=0)
    (delta,) = bench.tokens([5], logprobs=wrong)
    assert delta.finish is not None
    assert delta.finish.reason == "error"
    assert bench.scheduler.recv() == AbortReq("r")


@pytest.mark.parametrize("options", [{}, {"stop": "ree"}, {"detokenize": False}, {"skip_special_tokens": False}])
@pytest.mark.parametrize("stream", [False, True])
def test_plain_tokens_come_to_the_same_as_deltas(bench: Bench, stream: bool, options: dict[str, Any]) -> None:
    ids = bench.tokenizer.encode("one 🙂 two<|im_end|> three")
    answers = []
    for rid, plain in (("a", False), ("b", True)):
        bench.start(rid, stream=stream, **options)
        deltas = []
        for token in ids[:-1]:
            if plain:
                bench.handle(TokenBatch(rids=[rid], token_ids=pack_i32([token])))
                deltas += bench.deltas()
            else:
                deltas += bench.tokens([token], rid=rid)
        deltas += bench.tokens(ids[-1:], rid=rid, finish=Finish("length"))
        answers.append([msgspec.structs.replace(delta, rid="r") for delta in deltas])
    assert answers[0] == answers[1]
    assert bench.worker.num_live == 0


def test_a_plain_token_that_cannot_be_detokenized_ends_its_request_alone(bench: Bench) -> None:
    for rid in ("good", "bad", "scored"):
        bench.start(rid)
    bench.handle(TokenBatch(rids=["good", "bad", "unknown"], token_ids=pack_i32([20, -5, 20])))
    deltas = {delta.rid: delta for delta in bench.deltas()}
    assert set(deltas) == {"good", "bad"}
    assert deltas["good"].finish is None
    finish = deltas["bad"].finish
    assert finish is not None
    assert finish.error is not None
    assert bench.scheduler.recv() == AbortReq("bad")
    bench.handle(TokenBatch(rids=["bad"], token_ids=pack_i32([20])))
    assert bench.tokens([], rid="bad", finish=Finish("abort")) == []
    assert bench.worker.num_live == 2


# --- kept and tail: the tokens whose text the output keeps ---


@pytest.fixture
def letters(bench: Bench) -> dict[str, int]:
    """Tokens of one byte each; "Ã" and "©" stand for the two bytes of "é"."""
    return {letter: bench.tokenizer.token_to_id(letter) or 0 for letter in "abcÃ©"}


def whole(bench: Bench, ids: list[int], *, stream: bool, finish: Finish | None = None, **options: Any) -> RequestOutput:
    """Last output of a request whose tokens come one by one, with the text of the whole request."""
    bench.start(stream=stream, **options)
    outputs = [output for token in ids for output in bench.tokens([token])]
    outputs += bench.tokens([], finish=finish or Finish("length"))
    bench.scheduler.recv()
    return msgspec.structs.replace(outputs[-1], text="".join(output.text for output in outputs))


def check_kept(bench: Bench, ids: list[int], output: RequestOutput, *, skip_special: bool = True) -> None:
    """The definition: `kept` is the largest number of leading tokens whose text is a prefix of the output's text."""
    assert output.kept is not None
    special = bench.tokenizer.special_ids if skip_special else frozenset()
    known = list(itertools.takewhile(lambda token: token not in special, ids))
    texts = [bench.tokenizer.decode(known[:n]) for n in range(len(known) + 1)]
    assert output.kept == max(n for n, text in enumerate(texts) if output.text.startswith(text))
    assert texts[output.kept] + output.tail == output.text


@pytest.mark.parametrize("stream", [False, True])
def test_kept_is_every_token_without_a_stop_or_a_hidden_token(bench: Bench, stream: bool) -> None:
    ids = bench.tokenizer.encode("one 🙂 two")
    output = whole(bench, ids, stream=stream)
    assert (output.kept, output.tail) == (len(ids), "")


@pytest.mark.parametrize("stream", [False, True])
def test_kept_excludes_a_stop_token_that_the_text_excludes(bench: Bench, stream: bool) -> None:
    ids = bench.tokenizer.encode("bye<|im_end|>")
    for included in (False, True):
        bench.start(stream=stream, include_stop_str_in_output=included, skip_special_tokens=False)
        bench.tokens(ids[:-1])
        (output,) = bench.tokens(ids[-1:], finish=Finish("stop", ids[-1]))
        assert (output.kept, output.tail) == (len(ids) - (not included), "")


@pytest.mark.parametrize("stream", [False, True])
def test_kept_before_a_stop_string_inside_a_token(bench: Bench, stream: bool) -> None:
    ids = bench.tokenizer.encode("a quick")
    inside = bench.tokenizer.token_text(ids[-1])
    assert len(inside) > 2
    output = whole(bench, ids, stream=stream, stop=(inside[2:],))
    assert (output.kept, output.tail) == (len(ids) - 1, inside[:2])
    check_kept(bench, ids, output)


@pytest.mark.parametrize("stream", [False, True])
def test_kept_with_a_stop_string_that_stays_in_the_text(bench: Bench, stream: bool) -> None:
    ids = bench.tokenizer.encode("a quick")
    inside = bench.tokenizer.token_text(ids[-1])
    ends = whole(bench, ids, stream=stream, stop=(inside[1:],), include_stop_str_in_output=True)
    assert (ends.kept, ends.tail) == (len(ids), "")
    cut = whole(bench, ids, stream=stream, stop=(inside[:2],), include_stop_str_in_output=True)
    assert (cut.kept, cut.tail) == (len(ids) - 1, inside[:2])


@pytest.mark.parametrize("stream", [False, True])
def test_kept_before_a_stop_string_behind_half_a_character(bench: Bench, letters: dict[str, int], stream: bool) -> None:
    ids = [letters[letter] for letter in "aÃ©b"]
    output = whole(bench, ids, stream=stream, stop=("éb",))
    assert (output.text, output.kept, output.tail) == ("a", 1, "")
    broken = [letters[letter] for letter in "aÃb"]  # "a\ufffdb": the half character is kept as U+FFFD
    output = whole(bench, broken, stream=stream, stop=("b",))
    assert (output.text, output.kept, output.tail) == ("a\ufffd", 2, "")


@pytest.mark.parametrize("stream", [False, True])
def test_kept_ends_before_a_hidden_token(bench: Bench, letters: dict[str, int], stream: bool) -> None:
    hidden = bench.tokenizer.encode("<|im_end|>")
    ids = [letters["a"], letters["Ã"], *hidden, letters["b"]]
    output = whole(bench, ids, stream=stream)
    assert (output.text, output.kept, output.tail) == ("a\ufffdb", 2, "b")
    ids = [letters["a"], letters["Ã"], *hidden, letters["©"]]  # the text joins the halves around the hidden token
    output = whole(bench, ids, stream=stream)
    assert (output.text, output.kept, output.tail) == ("aé", 1, "é")
    shown = whole(bench, ids, stream=stream, skip_special_tokens=False)
    assert (shown.kept, shown.tail) == (len(ids), "")


def test_kept_of_several_tokens_at_once(bench: Bench, letters: dict[str, int]) -> None:
    ids = [letters["a"], *bench.tokenizer.encode("<|im_end|>"), letters["b"]]
    bench.start(stream=False)
    (output,) = bench.tokens(ids, finish=Finish("length"))
    assert (output.text, output.kept, output.tail) == ("ab", 1, "b")


def test_kept_is_not_known_of_errors_and_without_a_text(bench: Bench) -> None:
    bench.start(detokenize=False)
    assert bench.tokens("a", finish=Finish("length"))[0].kept is None
    bench.start(logprobs=0)
    (failed,) = bench.tokens([5], logprobs=columns([(-1.0, [])] * 2))
    assert failed.kept is None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_kept_by_its_definition(bench: Bench, data: st.DataObject) -> None:
    tokens = [bench.tokenizer.token_to_id(letter) or 0 for letter in "abÃ©"]
    tokens += bench.tokenizer.encode("<|im_end|> quick")
    ids = data.draw(st.lists(st.sampled_from(tokens), max_size=12))
    stop = tuple(data.draw(st.lists(st.text("abéui \ufffd", min_size=1, max_size=3), max_size=3)))
    options = {"stop": stop, "include_stop_str_in_output": data.draw(st.booleans())}
    for stream in (True, False):
        check_kept(bench, ids, whole(bench, ids, stream=stream, **options))
