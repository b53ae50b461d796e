"""`/ui` in a real browser, where one is installed: what it draws, what a user does with it, and hostile texts."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
import uvicorn

from benchmarks.common.browser import BROWSER, Browser
from benchmarks.common.synthetic_scheduler import SyntheticScheduler
from radixrt.config import ServerConfig
from radixrt.lang.observe.report_page import report_page
from radixrt.messages.cache_events import FromWatched, ToWatched
from radixrt.messages.client import RequestOutput
from radixrt.messages.fleet import ROUTER_OBSTACLES, HeldRequest, RouterQueue
from radixrt.messages.parts import Finish, Timings, Usage
from radixrt.messages.reads import TokenLogprob
from radixrt.messages.scheduler_stats import TierStats
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.part import Part
from radixrt.server import create_app
from tests.lang.observe.runs import large_run, seeing_run, small_run
from tests.server.fake_engine import MODEL, FakeEngine, Sent, error_delta, speak
from tests.vision.pictures import picture

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

HOSTILE = "<img src=x onerror=alert(1)>"
DAMAGED = b"no picture"
LIVE = "document.querySelector('#about').textContent.startsWith('live')"


def say(request: Sent) -> Iterable[RequestOutput | float]:
    """A hostile text; for a constrained request its tokens, of which the second is forced; an error for a picture that
    is damaged."""
    for image in () if request.chat is None else request.chat.images:
        if image.data == DAMAGED:
            return [error_delta(request, f"{image.param}: {HOSTILE} is damaged", 400, "invalid_image")]
    if request.sampling.constraint is None:
        return speak(request, [HOSTILE, " and", " so on"])
    tokens = [("{", 3, False), ('"name"', 1, True), (HOSTILE, 40, False)]
    rows = [
        TokenLogprob(i, text, text.encode(), -0.5, [TokenLogprob(i, text, text.encode(), -0.5)], allowed, forced)
        for i, (text, allowed, forced) in enumerate(tokens)
    ]
    return [
        RequestOutput(
            request.rid, "".join(row.text for row in rows), pack_i32(range(3)), Finish("stop"), Usage(10, 3, 4),
            Timings(), rows, prompt_ids=pack_i32(range(10)),
        )
    ]  # fmt: skip


class Keeper(Part):
    """Keeps half of each prefix in host memory, and all of it on disk."""

    def kept(self, tokens: Int32Array, namespace: str) -> dict[str, int]:
        return {"host": len(tokens) // 2, "disk": len(tokens)}

    def stats(self, now: float) -> dict[str, TierStats]:
        tiers = TierStats({"host": 4000, "disk": 9000}, {"host": 1000, "disk": 9000}, fetched_tokens={"host": 640})
        return {"tiers": tiers}


class Served:
    """A server with a scripted engine, whose tree is that of a real scheduler that makes a few steps a second."""

    def __init__(self, **options: Any) -> None:
        self.engine = FakeEngine()
        self.engine.script = say
        self.engine.answer = lambda question: RequestOutput(question.rid, HOSTILE, finish=Finish("stop"))
        self.engine.watched = self.answer
        self.scheduler = SyntheticScheduler(3000, running=40, waiting=300, program=HOSTILE)
        keeper, parts = Keeper(), self.scheduler.scheduler.parts
        parts.kept, parts.stats = (keeper.kept,), (*parts.stats, keeper.stats)
        app = create_app(self.engine.client, ServerConfig(ui_text=True, access_log=False, **options), MODEL)
        self.samples = app.state.service.ui.samples
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/ui"
        self.server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.server.run, args=([listener],), daemon=True),
            threading.Thread(target=self.steps, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def answer(self, message: ToWatched) -> list[FromWatched]:
        with self.lock:
            for each in self.scheduler.handle(message):
                self.engine.deliver(each)
        return []

    def steps(self) -> None:
        while not self.server.should_exit:
            with self.lock:
                self.scheduler.step()
                for message in self.scheduler.turn():
                    self.engine.deliver(message)
            self.engine.client.stats = self.scheduler.stats(time.monotonic())
            self.samples.tick()
            time.sleep(0.04)

    def close(self) -> None:
        self.engine.client.draining = True  # ends the feeds
        self.server.should_exit = True
        for thread in self.threads:
            thread.join(60)
        self.engine.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[Browser]:
    browser = Browser()
    browser.open(served.url)
    browser.wait(LIVE)
    browser.wait("performance.getEntriesByName('icicle').some((entry) => entry.detail.nodes > 3000)")
    yield browser
    browser.close()


def tab(page: Browser, name: str) -> None:
    page.run(f"document.querySelector('[data-tab={name}]').click()")


def text(page: Browser, selector: str) -> str:
    return str(page.run(f"document.querySelector('{selector}')?.textContent ?? ''"))


def test_a_tree_without_nodes_is_told_from_one_that_has_not_come(page: Browser) -> None:
    def words(header: str) -> str:
        made = f"Icicle.prototype.emptiness.call({{tree: {{header: {header}}}}})"
        return str(page.run(f"import('/ui/icicle.js').then(({{ Icicle }}) => {made})"))

    assert words("{}") == "The tree is being read."
    assert "Nothing is cached yet" in words("{enabled: true}")
    assert "--no-prefix-cache" in words("{enabled: false}")


def test_samples_that_come_with_a_second_snapshot_are_plotted_once(page: Browser) -> None:
    add = "(rows) => Plots.prototype.add.call(plots, rows)"
    script = f"const plots = {{rows: []}}, add = {add}; add([[1], [2]]); add([[1], [2], [3]]); return plots.rows"
    assert page.run(f"import('/ui/plots.js').then(({{ Plots }}) => {{ {script} }})") == [[1], [2], [3]]


def test_replicas_stand_above_the_tree_and_are_chosen_by_a_click(page: Browser) -> None:
    row = {
        "replica": 0, "state": "serving", "reason": "", "open": 3, "queued": 2, "predicted_wait_s": 0.25, "fences": 0,
        "slots_total": 1000, "slots_free": 500, "slots_evictable": 250, "prompt_tokens": 200, "cached_tokens": 150,
        "generated_tokens": 10, "role": "both",
    }  # fmt: skip
    rows = [row, {**row, "replica": 1, "role": "decode", "state": "fenced", "reason": HOSTILE}]
    assert page.run("document.querySelector('#fleet').hidden"), "one engine has no replicas"
    found = page.run(
        "import('/ui/fleet.js').then(({ Fleet }) => { const chosen = [], fleet = new Fleet((it) => chosen.push(it));"
        f"fleet.shown = 0; fleet.take({json.dumps(rows)}, 1, 7);"
        "const rows = document.querySelectorAll('#replicas tr');"
        "rows[2].click(); const words = [...rows].slice(1).map((each) => each.innerText);"
        "const about = document.querySelector('#fleet-about').textContent;"
        "fleet.take([], 2, 0); return [chosen, words, about]; })"
    )
    assert "7 in the router" in found[2], "those that are bound to no replica count too"
    assert found[0] == [1]
    assert [words.split() for words in found[1]] == [
        ["replica", "0", "serving", "3", "2", "0.25", "s", "0", "75.0", "%"],
        ["replica", "1,", "decode", "fenced", "3", "2", "0.25", "s", "0", "75.0", "%"],
    ]


def test_the_tree_is_drawn_zoomed_coloured_and_searched(page: Browser) -> None:
    tab(page, "live")
    box = page.run(
        "(({x, y, width}) => ({x, y, width}))(document.querySelector('#icicle canvas').getBoundingClientRect())"
    )
    assert box["width"] > 1000
    page.page.mouse.move(box["x"] + 20, box["y"] + 14)
    page.wait("!document.querySelector('#tip').hidden")
    assert "last used" in text(page, "#tip")
    page.wait(f"document.querySelector('#tip pre')?.textContent === '{HOSTILE}'")
    page.wait("document.querySelector('#tip').textContent.includes('on disk: all of the prefix')")
    assert re.search(r"in host memory: the first [\d,]+ of the prefix", text(page, "#tip"))
    page.page.mouse.click(box["x"] + 20, box["y"] + 14)
    page.wait("document.querySelectorAll('#crumbs button').length > 1")
    page.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    page.wait("document.querySelectorAll('#crumbs button').length === 0")
    for mode in ("hits", "holders", "eviction", "age"):
        chosen = "document.querySelector('#color')"
        page.run(f"{chosen}.value = '{mode}'; {chosen}.dispatchEvent(new Event('change'))")
        assert text(page, "#scale")
    for words, found in (("hits>1", True), ("tokens > 100000", False), ("req-", True), ("nothing", False)):
        search = "document.querySelector('#search')"
        page.run(f"{search}.value = '{words}'; {search}.dispatchEvent(new Event('input'))")
        page.wait(f"{search}.classList.contains('bad') === {'false' if found else 'true'}")
    page.run(f"{search}.value = ''; {search}.dispatchEvent(new Event('input'))")


def test_numbers_stand_beside_it(page: Browser) -> None:
    tab(page, "live")
    page.wait("document.querySelectorAll('#next tbody tr').length === 8")
    page.wait("document.querySelector('#kv-legend').textContent.includes('evictable')")
    page.wait("document.querySelectorAll('#tiers .stack').length === 2")
    shown = page.run("[...document.querySelectorAll('#tiers .legend')].map((each) => each.innerText)")
    assert shown[0] == "1,000 of 4,000 tokens in host memory, 640 prompt tokens fetched from there"
    assert shown[1] == "9,000 of 9,000 tokens on disk, 0 prompt tokens fetched from there"
    assert page.run("document.querySelector('#tiers i').offsetWidth") == pytest.approx(
        page.run("document.querySelector('#tiers .stack').offsetWidth") / 4, abs=2
    )
    assert page.run("document.querySelectorAll('#plots canvas').length") == 6
    page.wait("document.querySelector('#plots + p').textContent.includes('Belady')")
    page.wait("/running 40/.test(document.querySelector('#plots').textContent)")


def test_seconds_between_tokens_have_a_logarithmic_scale(page: Browser) -> None:
    script = "const [ticks, share] = logScale([0.02, 0.05, 9]); return [ticks, ticks.map(share), share(0.1), share(0)]"
    ticks, shares, tenth, nothing = page.run(f"import('/ui/plots.js').then(({{ logScale }}) => {{ {script} }})")
    assert ticks == [0.01, 0.1, 1, 10]
    assert shares == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert (tenth, nothing) == (pytest.approx(1 / 3), 0)
    assert page.run("import('/ui/plots.js').then(({ logScale }) => logScale([])[0])") == [0.01, 0.1, 1]


@pytest.mark.parametrize("width", [390, 900, 1400])
def test_nothing_is_wider_than_the_window(page: Browser, width: int) -> None:
    page.resize(width, 900)
    try:
        for name in ("live", "requests", "programs", "playground"):
            tab(page, name)
            page.wait("document.documentElement.scrollWidth <= innerWidth")
        tops = page.run("[...document.querySelectorAll('#tabs button')].map((each) => each.offsetTop)")
        assert max(tops) - min(tops) < 20, "the tabs are one line"
    finally:
        page.resize(1360, 900)


def test_counts_of_the_tiles_and_of_the_table_agree(page: Browser) -> None:
    tab(page, "requests")
    shown = "[document.querySelectorAll('.tile')[1].innerText, document.querySelector('#rows-about').textContent]"
    for _ in range(20):
        tile, about = page.run(shown)
        running, waiting = tile.split()[0], tile.split()[2]
        assert about == f"{running} request{'s' * (running != '1')} running, {waiting} waiting"
        page.page.wait_for_timeout(50)


def test_a_table_without_rows_is_not_shown(page: Browser) -> None:
    """The words above it say that there is none, and a row of headings alone would look like a defect."""
    tab(page, "requests")
    shown = "getComputedStyle(document.querySelector('#rows').parentElement).display"
    page.wait(f"{shown} !== 'none'")
    page.run("{ const body = document.querySelector('#rows').tBodies[0], was = [...body.children];"
             f"body.replaceChildren(); window.found = {shown}; body.replaceChildren(...was); }}")  # fmt: skip
    assert page.run("window.found") == "none"


def test_a_long_table_of_requests_holds_what_is_in_sight(page: Browser) -> None:
    tab(page, "requests")
    page.wait("/40 requests running, 300 waiting/.test(document.querySelector('#rows-about').textContent)")
    page.wait("/new/.test(document.querySelector('#rows tbody').textContent)")
    assert 10 < page.run("document.querySelectorAll('#rows tbody tr').length") < 100
    page.run("document.querySelector('#rows').parentElement.scrollTop = 1e6")
    page.wait("/waiting/.test(document.querySelector('#rows tbody').textContent)")
    assert page.run("document.querySelectorAll('#rows tbody tr').length") < 100


def test_a_waiting_request_says_what_it_would_reuse_and_what_it_waits_for(page: Browser) -> None:
    tab(page, "requests")
    page.run("document.querySelector('#rows').parentElement.scrollTop = 40 * 29")
    page.wait("/waits: as many requests run as may/.test(document.querySelector('#rows tbody').textContent)")
    assert "waiting for a place" in text(page, "#rows tbody")
    page.run("document.querySelector('#rows').parentElement.scrollTop = 1e6")
    page.wait("/far back in the queue/.test(document.querySelector('#rows tbody').textContent)")
    queue = {
        "matched_tokens": 300, "reusable_tokens": 999, "continuations": 2, "obstacle": "slots", "needed_slots": 900,
        "free_slots": 40, "evicted": 500, "reset": 0, "evicted_s": 12, "new": 200,
    }  # fmt: skip
    unhashed = {key: value for key, value in queue.items() if key not in ("evicted", "reset", "evicted_s", "new")}
    whole = {**queue, "matched_tokens": 999, "evicted": 0, "new": 1, "obstacle": "programs"}

    def words(queue: dict[str, object], cached: int) -> str:
        row = json.dumps({"prompt_tokens": 1000, "cached_tokens": cached, "retractions": 0, "queue": queue})
        return str(page.run(f"import('/ui/requests.js').then(({{ expected }}) => expected({row}))"))

    assert words(queue, 300) == (
        "500 evicted 12 s before; 200 new, parts from 2 cached continuations after 300 tokens; "
        "waits: it needs 900 KV slots, and 40 are left"
    )
    assert words(queue, 100).startswith("500 evicted 12 s before; 200 read again for the recurrent state; 200 new")
    assert words(unhashed, 300) == "waits: it needs 900 KV slots, and 40 are left"
    kept = {**queue, "kept": {"host": 0, "disk": 896}}
    assert words(kept, 300).endswith("; 896 of it are on disk; waits: it needs 900 KV slots, and 40 are left")
    assert words(whole, 999).startswith("all but the last token, which is always computed; waits: the 40 KV slots")


def test_requests_that_the_router_holds_are_listed_with_what_they_wait_for(page: Browser, served: Served) -> None:
    tab(page, "requests")
    assert page.run("document.querySelector('#held-section').hidden"), "nothing waits in a router"
    made = {
        "rid": HOSTILE, "program": "tree", "branch": "0/1", "kind": "generate", "priority": 0, "prompt_tokens": 1000,
        "output_tokens": 0, "max_tokens": 50, "constrained": True, "age_s": 3.0, "replica": 1, "cached_tokens": 0,
        "best_replica": 0, "best_tokens": 640, "obstacle": "prompts", "needed_slots": 1050, "free_slots": 40,
        "tokens_ahead": 16384,
    }  # fmt: skip
    served.engine.deliver(RouterQueue(70, [HeldRequest(**made)]))
    page.wait("!document.querySelector('#held-section').hidden")
    assert "70 requests waiting, the first 1 of them here" in text(page, "#held-about")
    page.wait("document.querySelectorAll('#held tbody td').length > 3")
    words = [str(cell) for cell in page.run("[...document.querySelectorAll('#held td')].map((td) => td.textContent)")]
    assert words[1:6] == [HOSTILE, "for replica 1, prompts ahead · constrained", "tree / 0/1", "1,000", "64.0 %"]
    assert words[8] == ("replica 1 has 16,384 prompt tokens ahead; replica 0 has 640 of it cached, replica 1 none")

    def held(**changes: Any) -> str:
        row = json.dumps({**made, **changes})
        return str(page.run(f"import('/ui/requests.js').then(({{ held }}) => held({row}))"))

    for obstacle in ROUTER_OBSTACLES:
        assert ("requests before it go first" in held(obstacle=obstacle)) == (not obstacle), "each has its words"
    assert held(replica=None, best_replica=None, best_tokens=0, obstacle="replicas", output_tokens=7) == (
        "no replica takes new requests; no replica has its prefix; its replica died, and it goes on elsewhere"
    )
    assert held(best_replica=1, cached_tokens=640, obstacle="") == (
        "requests before it go first; replica 1 has 640 of it cached"
    )
    assert held(replica=None, best_replica=0, cached_tokens=640, obstacle="replicas") == (
        "no replica takes new requests; replica 0 has 640 of it cached"
    )
    served.engine.deliver(RouterQueue(0))
    page.wait("document.querySelector('#held-section').hidden")


def test_programs_are_shown_as_text(page: Browser) -> None:
    tab(page, "programs")
    page.wait("document.querySelectorAll('#programs tbody tr').length > 3")
    assert HOSTILE in text(page, "#programs tbody")
    assert page.run("document.querySelector('#calls-section').hidden")
    page.run("document.querySelector('#programs tbody td.mono').click()")
    page.wait("document.querySelectorAll('#calls tbody tr').length > 2")
    page.wait("/new|evicted|reused/.test(document.querySelector('#calls tbody').textContent)")
    assert HOSTILE in text(page, "#calls-about")


def drop(page: Browser, content: str, name: str = "run.html") -> None:
    """Choose a file in the page, as a user does."""
    made = f"new File([{json.dumps(content)}], {json.dumps(name)})"
    page.run(
        f"{{ const given = new DataTransfer(), input = document.querySelector('#report-file'); given.items.add({made});"
        "input.files = given.files; input.dispatchEvent(new Event('change')); }"
    )


def test_a_report_of_a_run_is_opened_in_the_page(page: Browser) -> None:
    """Its texts are text, its own script and markup are not looked at, and nothing is sent to the server."""
    tab(page, "programs")
    before = page.run("performance.getEntriesByType('resource').length")
    small = report_page(small_run()).replace("<body>", f"<body>{HOSTILE}")
    drop(page, small)
    page.wait("/judge/.test(document.querySelector('#report-about').textContent)")
    assert text(page, "#report-totals") == (
        "5 calls in 4 branches, 1.19 s: of 1,262 prompt tokens 70.5 % reused and 372 computed, 108 generated"
    )
    rows = page.run("[...document.querySelectorAll('#report-calls tbody tr:not(.spacer)')].map((row) => row.innerText)")
    assert [row.split("\t")[1] for row in rows] == ["note", "note", "note", "grade", "verdict"]
    page.run("document.querySelectorAll('#report-calls tbody tr')[2].children[0].click()")
    assert "<i>it holds</i>" in text(page, "#report-text")
    assert "Comment on its" in text(page, "#report-text .user")
    assert text(page, "#report-text .same"), "what an earlier prompt began with is told apart"
    drop(page, report_page(large_run()))
    page.wait("/survey/.test(document.querySelector('#report-about').textContent)")
    assert "1 failed" in text(page, "#report-totals")
    widths = "[...document.querySelectorAll('#report-calls .bar')[1].querySelectorAll('i')].map((i) => i.style.width)"
    assert page.run(widths)[0] == "96.0177%", "rows of the report before are drawn anew"
    assert page.run("document.querySelectorAll('#report-calls tbody tr').length") < 100, "of 300 calls, those in sight"
    assert page.run("performance.getEntriesByType('resource').length") == before, "nothing was sent or loaded"


def test_pictures_of_a_report(page: Browser) -> None:
    """They stand in place of their labels; only small JPEG files in the report itself are shown."""
    tab(page, "programs")
    log = seeing_run(picture(60, 80), picture(60, 80, 1))
    content = report_page(log)

    def show(content: str) -> None:
        drop(page, content)
        page.wait("document.querySelectorAll('#report-calls tbody tr:not(.spacer)').length === 3")
        page.run("document.querySelectorAll('#report-calls tbody tr:not(.spacer)')[2].children[0].click()")

    show(content)
    image = page.page.locator("#report-text .user img")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 80
    assert image.get_attribute("alt") == log.calls[2].prompt_text[len("<user>😀 ") : -len(" What? 2")]
    assert text(page, "#report-text .user").endswith("What? 2")
    show(content.replace("data:image/jpeg;base64,", "https://elsewhere.example/"))
    assert image.count() == 0
    assert log.calls[2].prompt_text in text(page, "#report-text .user")


def test_what_is_no_report_is_refused_with_words(page: Browser) -> None:
    tab(page, "programs")

    def refusal(content: str) -> str:
        page.run("document.querySelector('#report-failure').hidden = true")
        drop(page, content, f"{HOSTILE}.html")
        page.wait("!document.querySelector('#report-failure').hidden")
        assert page.run("document.querySelector('#report').hidden")
        return text(page, "#report-failure")

    def data(body: str) -> str:
        return f'<script type="application/json" id="run">{body}</script>'

    assert refusal("hello").startswith(f"{HOSTILE}.html: this is no report of a run")
    assert "damaged" in refusal(data("{"))
    for body in ("null", "[]", "{}", '{"calls": 1, "branches": []}'):
        assert "another version" in refusal(data(body))
    assert "at most 20,000" in refusal(data(json.dumps({"calls": [0] * 20_001, "branches": []})))
    call = {"id": {}, "prompt": "x", "text": 5, "end": "y", "chars": -1}
    odd = {"calls": [None, 1, call], "branches": [None], "name": 3}
    drop(page, data(json.dumps(odd)))
    page.wait("/^1 call in 1 branch, 0 s/.test(document.querySelector('#report-totals').textContent)")


def test_the_playground(page: Browser) -> None:
    tab(page, "playground")

    def ask(mode: str) -> None:
        page.run(f"document.querySelector('[data-mode={mode}]').click(); document.querySelector('#send').click()")
        page.wait("document.querySelector('#stop').hidden")
        page.wait("/output token/.test(document.querySelector('#dialog').textContent)")

    ask("chat")
    assert text(page, "#dialog .said:not(.user)") == f"{HOSTILE} and so on"
    ask("completion")
    assert page.run("document.querySelectorAll('#dialog .token').length") == 3
    page.run("document.querySelector('#dialog .token').click()")
    assert "36.8 %" in text(page, "#alternatives")
    ask("json")
    assert text(page, "#dialog .token.forced") == '"name"'
    assert "1 of 3 tokens" in text(page, "#shades")
    page.run("document.querySelector('#schema').value = '{'; document.querySelector('#send').click()")
    page.wait("document.querySelector('#dialog .note.bad') !== null")  # an error that is shown


PICTURES = "[...document.querySelectorAll('#pictures img')].map((img) => img.alt)"
NOTE = "#picture-note"


def file(name: str, data: bytes, kind: str = "image/png") -> dict[str, Any]:
    """A file that a user chooses, for Playwright."""
    return {"name": name, "mimeType": kind, "buffer": data}


def give(page: Browser, event: str, name: str, data: bytes) -> None:
    """Drop or paste a PNG file, as a user does."""
    field = "dataTransfer" if event == "drop" else "clipboardData"
    kind = "DragEvent" if event == "drop" else "ClipboardEvent"
    made = f"new File([new Uint8Array({list(data)})], {json.dumps(name)}, {{ type: 'image/png' }})"
    page.run(
        f"{{ const given = new DataTransfer(); given.items.add({made});"
        f"const event = new {kind}('{event}', {{ {field}: given, bubbles: true, cancelable: true }});"
        "document.querySelector('#prompt').dispatchEvent(event); }"
    )


def test_the_playground_of_a_model_that_reads_no_images(page: Browser) -> None:
    tab(page, "playground")
    page.run("document.querySelector('[data-mode=chat]').click()")
    assert page.run("document.querySelector('#add-picture').disabled")
    assert text(page, NOTE) == "this model reads no images"
    give(page, "paste", "a.png", picture(8, 8))
    page.wait(f"document.querySelector('{NOTE}.bad') !== null")
    assert "was not added" in text(page, NOTE)
    assert page.run(PICTURES) == []


def test_pictures_of_the_playground(page: Browser, served: Served) -> None:
    info = served.engine.client.info
    assert info is not None
    served.engine.client.info = msgspec.structs.replace(info, max_images=4)
    page.open(served.url)
    page.wait(LIVE)
    tab(page, "playground")
    page.wait("!document.querySelector('#add-picture').disabled")
    first, second, third = (picture(12, 20, seed) for seed in range(3))
    page.page.set_input_files("#picture-file", [file("first.png", first), file("other.png", second)])
    page.wait(f"{PICTURES}.length === 2")
    give(page, "drop", "dropped.png", third)
    page.wait(f"{PICTURES}.length === 3")
    give(page, "paste", "pasted.png", third)
    page.wait(f"{PICTURES}.length === 4")
    for name in ("other.png", "pasted.png"):
        page.page.click(f"#pictures [aria-label='Remove {name}']")
    assert page.run(PICTURES) == ["first.png", "dropped.png"]
    for wrong, words in (
        (file(f"{HOSTILE}.gif", b"GIF89a", "image/gif"), f"{HOSTILE}.gif is no PNG, JPEG or WEBP file"),
        (file("large.png", bytes(10 * 2**20 + 1)), "large.png has more than 10 MiB; make it smaller"),
    ):
        page.page.set_input_files("#picture-file", [wrong])
        page.wait(f"document.querySelector('{NOTE}').textContent === {json.dumps(words)}")
    page.run("document.querySelector('#detail').value = 'low'; document.querySelector('#send').click()")
    page.wait("/output token/.test(document.querySelector('#dialog').textContent)")
    chat = served.engine.requests[-1].chat
    assert [(image.data, image.detail) for image in chat.images] == [(first, "low"), (third, "low")]
    (message,) = json.loads(chat.messages)
    assert [part["type"] for part in message["content"]] == ["image", "image", "text"]
    assert page.run(PICTURES) == [], "they have gone with the message"
    shown = "[...document.querySelectorAll('#dialog .user img')].map((img) => img.naturalWidth)"
    page.wait(f"{shown}.join() === '20,20'")  # the policy lets them through

    page.page.set_input_files("#picture-file", [file("damaged.png", DAMAGED)])
    page.wait(f"{PICTURES}.length === 1")
    page.run("document.querySelector('#prompt').value = 'And this?'; document.querySelector('#send').click()")
    page.wait("document.querySelector('#dialog .note.bad') !== null")
    assert text(page, "#dialog .note.bad") == f"messages[2].content[0].image_url: {HOSTILE} is damaged"
    assert page.run(PICTURES) == ["damaged.png"], "the message is in the form again"
    assert page.run("document.querySelector('#prompt').value") == "And this?"
    page.page.click("#pictures button")
    page.run("document.querySelector('#send').click()")
    page.wait("document.querySelector('#stop').hidden && document.querySelectorAll('#dialog .user').length === 2")
    assert len(json.loads(served.engine.requests[-1].chat.messages)) == 3, "without the message that failed"
    assert [error for error in page.errors if "400 (Bad Request)" not in error] == []
    page.errors.clear()

    page.run("document.querySelector('[data-mode=json]').click()")
    page.page.set_input_files("#picture-file", [file("first.png", first)])
    page.wait(f"{PICTURES}.length === 1")
    page.run("document.querySelector('#send').click()")
    page.wait("/output token/.test(document.querySelector('#dialog').textContent)")
    assert served.engine.requests[-1].chat.images[0].data == first
    assert page.run(PICTURES) == ["first.png"], "it stays, as the prompt does"
    page.run("document.querySelector('[data-mode=completion]').click()")
    assert page.run("document.querySelector('#add-picture').offsetParent") is None
    page.run("document.querySelector('#clear').click()")
    assert page.run(PICTURES) == []


def test_texts_of_users_are_only_text(page: Browser) -> None:
    """After all of the above: no element came out of a text, and nothing was refused by the policy."""
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.errors == []


def test_the_page_asks_for_the_key_of_an_admin(page: Browser) -> None:
    served, browser = Served(api_key="right"), Browser(beside=page)

    def give(key: str) -> None:
        browser.run(f"document.querySelector('#key').value = '{key}'; document.querySelector('#login button').click()")

    try:
        browser.open(served.url)
        browser.wait("!document.querySelector('#login').hidden")
        assert browser.run("document.querySelector('#failure').hidden && document.querySelector('#main').hidden")
        give("wrong")
        browser.wait("!document.querySelector('#failure').hidden")
        assert "a valid API key is needed" in text(browser, "#failure")
        give("right")
        browser.wait(LIVE)
        assert browser.run("document.querySelector('#login').hidden && document.querySelector('#failure').hidden")
        assert not browser.run("document.querySelector('#main').hidden")
    finally:
        browser.close()
        served.close()
