"""Reports of runs: the text, the page's data, and the page itself in a real browser where one is installed."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.common.browser import BROWSER, Browser
from radixrt.lang.observe.report import report, totals
from radixrt.lang.observe.report_page import report_page, run_data, save_report
from radixrt.lang.observe.run_log import RunLog
from tests.lang.observe.runs import HOSTILE, START, Made, large_run, seeing_run, small_run
from tests.vision.pictures import picture


def test_totals() -> None:
    total = totals(small_run().calls)
    assert (total.calls, total.prompt_tokens, total.cached_tokens, total.computed_tokens) == (5, 1262, 890, 372)
    assert (total.completion_tokens, total.forced_tokens) == (108, 12)
    assert total.hit_rate == pytest.approx(890 / 1262)
    assert total.wall_s == pytest.approx(1.168)
    empty = totals([])
    assert (empty.hit_rate, empty.at_once, empty.wall_s) == (0.0, 0.0, 0.0)


def test_the_text_of_a_small_run() -> None:
    lines = report(small_run()).splitlines()
    assert lines[0] == "judge on Engine smollm2-135m-instruct: 5 calls, 1.19 s"
    assert lines[1] == "prompts    1,262 tokens: 890 reused (70.5%), 372 computed"
    assert [line[:20].strip() for line in lines[6:]] == [
        "clarity / note", "evidence / note", "style / note", "grade", "verdict: Verdict",
    ]  # fmt: skip
    assert lines[9].endswith("pass  (83%)")


def test_the_text_says_what_came_from_tiers() -> None:
    log = small_run()
    log.calls[1].fetched_tokens = {"host": 128}
    log.calls[2].fetched_tokens = {"host": 64, "disk": 192}
    line = report(log).splitlines()[1]
    assert line == (
        "prompts    1,262 tokens: 890 reused (70.5%, 192 of them from host memory, 192 of them from disk), 372 computed"
    )
    assert totals(log.calls).fetched_tokens == {"host": 192, "disk": 192}


def test_the_text_sums_up_large_forks_and_names_errors() -> None:
    text = report(large_run())
    assert len(text.splitlines()) < 20
    assert "fork into 256 branches, 1 failed:" in text
    assert re.search(r"256 x summary +226,304 222,208 +4,096 +6,134 .*median 0\.\d\d s, longest", text)


def test_text_of_a_model_cannot_move_the_cursor() -> None:
    made = Made("f")
    made.call("0", "a", (0, 0, 0, 1), "p", (1, 0, 1, 0), "one\x1b[2J\r\ntwo")
    assert "one [2J ⏎two" in report(made.done(1))


def test_a_run_that_is_going_on_and_one_without_calls() -> None:
    made = Made("f")
    assert "0 calls, still running" in report(made.log)
    made.call("0", "a", (0, 0, 0, 1), "p", (1, 0, 1, 0), "x", end=None, finish="")
    assert "running" in report(made.log).splitlines()[-1]
    assert run_data(made.log)["calls"][0]["end"] is None
    failed = RunLog("p", "f", "b", start=START, end=START + 1, error="ValueError: no")
    assert "failed: ValueError: no" in report(failed)


# --- the page ---


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


def prompts(data: dict) -> dict[int, str]:
    """As the page's script puts them together."""
    whole: dict[int, str] = {}
    for call in data["calls"]:
        before = "" if call["base"] is None else whole[call["base"]]
        start = before.encode("utf-16-le")[: 2 * call["chars"]].decode("utf-16-le")
        whole[call["id"]] = start + call["prompt_text"]
    return whole


def test_the_page_holds_each_prompt_once() -> None:
    log = large_run()
    data = embedded(report_page(log))
    assert prompts(data) == {call.id: call.prompt_text for call in log.calls}
    assert len(report_page(log)) < 400_000 < sum(len(call.prompt_text) for call in log.calls)


def test_prompts_beyond_the_basic_plane() -> None:
    made = Made("f")
    for i in range(3):
        made.call("0", "a", (0, 0, 0, 1), f"😀é東 {i}", (3, 0, 1, 0), "x")
    assert prompts(embedded(report_page(made.done(1))))[2] == "😀é東 2"


def test_no_text_of_the_run_is_markup() -> None:
    made = Made(HOSTILE)
    made.branch("0", HOSTILE, 0, 0)
    made.call("0", HOSTILE, (0, 0, 0, 1), HOSTILE, (1, 0, 1, 0), HOSTILE, error=HOSTILE, choices=(HOSTILE,))
    made.log.error = HOSTILE
    page = report_page(made.done(1))
    assert "<img" not in page
    assert page.count("<script") == 2
    assert embedded(page)["calls"][0]["text"] == HOSTILE


def test_the_page_needs_no_other_file() -> None:
    page = report_page(small_run())
    assert not re.search(r"(src|href)\s*=|url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page


def test_pictures_are_small_files_by_their_labels() -> None:
    damaged = picture(30, 40, 2)[:-60]
    log = seeing_run(picture(600, 800), picture(600, 800, 1), damaged)
    found = embedded(report_page(log))["pictures"]
    assert list(found) == list(log.pictures)[:2], "a damaged picture keeps its label"
    for url in found.values():
        head, _, data = url.partition(",")
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        assert (head, image.format, image.size) == ("data:image/jpeg;base64", "JPEG", (240, 180))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_pictures_in_a_browser(tmp_path: Path) -> None:
    """Also where the grey text, which an earlier prompt begins with too, ends within a label."""
    log = seeing_run(picture(60, 80), picture(60, 80, 1))
    path = save_report(log, tmp_path / "seeing.html")
    browser = Browser()
    try:
        for call in log.calls:
            browser.open(f"file://{path}#call-{call.id}")
            browser.page.reload()
            prompt = browser.page.locator("#detail pre").last
            image = prompt.locator("img")
            assert image.count() == 1
            assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 80
            assert image.get_attribute("alt") in call.prompt_text
            assert prompt.text_content() == f"<user>😀 [image 80 x 60] What? {call.id}"
        assert not browser.errors
    finally:
        browser.close()


def dom(path: Path, fragment: str = "") -> str:
    """Return the page as a browser has built it."""
    browser = Browser()
    try:
        browser.open(f"file://{path}{fragment}")
        return browser.page.content()
    finally:
        browser.close()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser(tmp_path: Path) -> None:
    small = dom(save_report(small_run(), tmp_path / "small.html"), "#call-3")
    assert small.count('<g class="call') == 5
    assert len(re.findall(r'<tr data-call="\d+"', small)) == 5
    assert "<b>70.5 %</b>" in small
    assert "fork into 3 branches" in small
    assert re.search(r'<aside id="detail"[^>]*>.*83\.1 %', small, re.DOTALL)
    large = dom(save_report(large_run(), tmp_path / "large.html"))
    assert large.count('<g class="call') == 300
    assert "256 branches" in large
    assert "1 branch failed" in large
    assert len(re.findall(r'<tr data-call="\d+"', large)) == 7  # the large fork is folded


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_hostile_text_in_a_browser(tmp_path: Path) -> None:
    made = Made("f")
    made.call("0", HOSTILE, (0, 0, 0, 1), HOSTILE, (1, 0, 1, 0), HOSTILE)
    shown = dom(save_report(made.done(1), tmp_path / "run.html"), "#call-0")
    assert "<title>f: report of a run</title>" in shown
    assert "&lt;/script&gt;" in shown
    assert "<img" not in shown
