"""Logs of runs, as the runtime would write them: made up, so that every field is known."""

from __future__ import annotations

from array import array

from msgspec.structs import replace

from radixrt.lang.observe.run_log import BranchRecord, CallRecord, RunLog
from radixrt.lang.pictures import read_picture
from radixrt.sampling_params import SamplingParams

START = 1000.0
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;<b>"


class Made:
    """A log under construction. Times are given relative to the run's start."""

    def __init__(self, name: str) -> None:
        self.log = RunLog("r-1f2e", name, "Engine smollm2-135m-instruct", start=START, unix_time=1.7637e9)
        self.log.branches["0"] = BranchRecord("0", None, "", 0, START)

    def branch(self, parent: str, key: str, group: int, at: float, after: int | None = None) -> str:
        number = f"{parent}/{sum(b.parent == parent for b in self.log.branches.values()) + 1}"
        self.log.branches[number] = BranchRecord(number, parent, key, group, START + at, after=after)
        return number

    def call(
        self, branch: str, name: str, times: tuple[float, float, float, float], prompt: str, tokens: tuple[int, ...],
        text: str, **fields: object,
    ) -> CallRecord:  # fmt: skip
        """times: queued, start, first token, end. tokens: prompt, cached, completion, forced."""
        queued, start, first, end = (START + t for t in times)
        record = CallRecord(
            len(self.log.calls), branch, name, "gen", "str", queued, start=start, first_token=first, end=end,
            prompt_tokens=tokens[0], cached_tokens=tokens[1], completion_tokens=tokens[2], forced_tokens=tokens[3],
            text=text, finish="stop", prompt_text=prompt, prompt_ids=array("i", range(tokens[0])),
            output_ids=array("i", range(5000, 5000 + tokens[2])), sampling=SamplingParams(temperature=0.0),
        )  # fmt: skip
        record = replace(record, **fields)
        self.log.calls.append(record)
        return record

    def done(self, at: float) -> RunLog:
        self.log.end = START + at
        for branch in self.log.branches.values():
            branch.ended = self.log.end
        return self.log


def seeing_run(*files: bytes) -> RunLog:
    """A call about the first picture, then one about each of them, whose prompts begin alike up to the label's size."""
    made = Made("judge")
    pictures = [read_picture(data, "auto") for data in files]
    for i, picture in enumerate([pictures[0], *pictures]):
        made.log.pictures[picture.label] = picture
        made.call("0", f"look{i}", (i, i, i, i + 1), f"<user>😀 {picture.label} What? {i}", (40, 0, 1, 0), "x")
    return made.done(9)


def small_run() -> RunLog:
    """The judge: three views side by side, a choice, a typed verdict. Five calls."""
    made = Made("judge")
    essay = (
        "<|im_start|>system\nYou grade essays.<|im_end|>\n<|im_start|>user\nThe sea is wide, and so is thought. " * 3
    )
    views = [made.branch("0", topic, 0, 0.01) for topic in ("clarity", "evidence", "style")]
    notes = []
    for i, (view, topic) in enumerate(zip(views, ("clarity", "evidence", "style"), strict=True)):
        times = (0.012, 0.014 + i * 0.001, 0.09 + i * 0.004, 0.41 + 0.09 * i)
        note = f"The {topic} of this essay is good & steady: <i>it holds</i>, and\nit ends well."
        prompt = f"{essay}Comment on its {topic}.<|im_end|>\n<|im_start|>assistant\n"
        made.call(view, "note", times, prompt, (212, 0 if i == 0 else 196, 24 + i, 0), note)
        notes.append(note)
    prompt = essay + "Notes:\n" + "\n".join(notes) + "<|im_end|>\n<|im_start|>assistant\n"
    made.call(
        "0", "grade", (0.6, 0.601, 0.66, 0.66), prompt, (301, 195, 2, 0), "pass", kind="select", type="str",
        finish="choice", choices=("pass", "fail"), probabilities=(0.8312, 0.1688), method="token_length_normalized",
        depends=(0, 1, 2), first_token=None, sampling=None,
    )  # fmt: skip
    verdict = '{"score":7,"reason":"It is clear and ends well."}'
    schema = SamplingParams(temperature=0.0, json_schema='{"type":"object","properties":{"score":{"type":"integer"}}}')
    made.call(
        "0", "verdict", (0.662, 0.663, 0.70, 1.18), prompt + "pass<|im_end|>\nNow the verdict.", (325, 303, 31, 12),
        verdict, type="Verdict", depends=(3,), sampling=schema, fork_len=0,
    )  # fmt: skip
    return made.done(1.19)


def large_run(wide: int = 256) -> RunLog:
    """A plan, a fork into very many branches (a few of them go on, one fails), a merge in steps. 300 calls for 256."""
    made = Made("survey")
    base = "<|im_start|>user\n" + "A long document about the history of lighthouses and those who kept them. " * 40
    made.call("0", "plan", (0.0, 0.004, 0.31, 0.92), base, (820, 0, 40, 0), "First ask what a lighthouse is.")
    workers = [made.branch("0", f"chapter {i}", 0, 0.93, after=0) for i in range(wide)]
    for i, worker in enumerate(workers):
        wave, place = divmod(i, 64)
        queued, start = 0.94 + 0.0002 * i, 0.95 + 1.35 * wave + 0.004 * place
        times = (queued, start, start + 0.07, start + 0.5 + (i * 37 % 64) / 90)
        prompt = f"{base}Sum up chapter {i}.<|im_end|>\n<|im_start|>assistant\n"
        text = f"Chapter {i} says that the light turned {i * 7 % 100} times, and nobody was lost at sea that year."
        failed = {"error": "RequestError: the queue is full", "finish": "error"} if i == 77 else {}
        made.call(worker, "summary", times, prompt, (884, 868, 20 + i % 9, 0), text, depends=(0,), **failed)
        if i == 77:
            made.log.branches[worker].error = "call 'summary' of branch chapter 77 failed: the queue is full"
    for i in range(37):
        start = 6.0 + 0.1 * i
        worker = workers[i * 3]
        made.call(
            worker, "check", (start, start + 0.01, start + 0.03, start + 0.3), f"{base}Is {i} true?", (930, 910, 3, 1),
            "true", type="bool", depends=(i * 3 + 1,),
        )  # fmt: skip
    ids = tuple(range(1, wide + 1))
    made.call(
        "0", "merged", (10.1, 10.11, 10.9, 12.4), base + "All together:", (2900, 860, 64, 0), HOSTILE, depends=ids
    )
    groups = [made.branch("0", f"view {i}", 1, 12.45) for i in range(5)]
    for i, group in enumerate(groups):
        made.call(group, "score", (12.46, 12.47, 12.6, 12.8 + 0.1 * i), base + "Score it.", (2990, 2960, 4, 0), str(i))
    return made.done(13.4)
