"""The report of a run as one self-contained HTML page; its script and style are in this folder.

The page gets the run as JSON and shows it through `textContent`, and pictures as small JPEG files in data: URLs. Its
content security policy allows no other script, so that output of a model cannot be executed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import string
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from radixrt.constraint import KINDS
from radixrt.lang.observe.report import report
from radixrt.lang.observe.run_log import CallRecord, RunLog
from radixrt.lang.observe.shared_prefix import Sharing
from radixrt.lang.pictures import Picture
from radixrt.vision.encode import thumbnail

MAX_TEXT_CHARS = 100_000
"""Maximum number of shown characters of an output."""

MAX_THUMBNAILS = 200
"""Maximum number of pictures that are shown. Others are shown as their labels."""

THUMBNAIL_SIDE = 240
"""Longest side of a shown picture in pixels, twice the side on the page."""


def save_report(log: RunLog, path: str | PathLike[str]) -> Path:
    """Write the page and return its path.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    target.write_text(report_page(log), encoding="utf-8")
    return target


def report_page(log: RunLog) -> str:
    """The page's HTML."""
    page, style, script = (_asset(name) for name in ("page.html", "style.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps(run_data(log), allow_nan=False, separators=(",", ":"))
    return string.Template(page).substitute(
        title=html.escape(f"{log.name}: report of a run"),
        script_hash=f"sha256-{digest}",
        style=style,
        script=script,
        data=data.replace("<", "\\u003c"),  # without "<" the JSON text cannot end its script element
        summary=html.escape(report(log)),
    )


def _asset(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


# --- the data ---


def run_data(log: RunLog) -> dict[str, Any]:
    """The run as data for the page's script. Times are seconds since its start; `ready` is the time at which a call was
    queued and all calls that it depends on were answered."""

    def at(moment: float | None) -> float | None:
        return None if moment is None else round(moment - log.start, 6)

    # The log of a running program grows while it is read, so it is copied first.
    branches, calls = list(log.branches.values()), list(log.calls)
    sharing = Sharing()
    of = Counter(map(_asked_for, calls))
    ends = {call.id: call.end for call in calls if call.end is not None}
    end = log.end if log.end is not None else max(ends.values(), default=log.start)
    return {
        "name": log.name,
        "backend": log.backend,
        "program": log.program,
        "unix_time": log.unix_time,
        "wall_s": at(end),
        "running": log.end is None,
        "error": log.error,
        "branches": [
            {
                "id": branch.id,
                "parent": branch.parent,
                "key": branch.key,
                "group": branch.group,
                "created": at(branch.created),
                "error": branch.error,
            }
            for branch in branches
        ],
        "calls": [
            _call(call, sharing, of[_asked_for(call)])
            | {name: at(getattr(call, field)) for name, field in _TIMES.items()}
            | {"ready": at(max([call.queued, *(ends.get(other, 0.0) for other in call.depends)]))}
            for call in calls
        ],
        "pictures": _thumbnails(dict(log.pictures)),
    }


def _thumbnails(pictures: Mapping[str, Picture]) -> dict[str, str]:
    """Return small pictures as data: URLs, by the labels that stand for them in texts of prompts."""
    found = {}
    for label, picture in islice(pictures.items(), MAX_THUMBNAILS):
        data = thumbnail(picture.image.data, THUMBNAIL_SIDE)
        if data is not None:
            found[label] = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return found


_TIMES = {"queued": "queued", "start": "start", "admitted": "admitted", "first": "first_token", "end": "end"}


def _asked_for(call: CallRecord) -> tuple[Any, ...]:
    """Key that the n calls of one gen share."""
    return call.branch, call.name, call.depends


def _call(call: CallRecord, sharing: Sharing, of: int) -> dict[str, Any]:
    shared = sharing.add(call)
    base = sharing.calls.get(shared.base) if shared.base is not None else None
    return {
        "id": call.id,
        "branch": call.branch,
        "name": call.name,
        "kind": call.kind,
        "type": call.type,
        "index": call.index,
        "of": of,
        "depends": list(call.depends),
        "prompt": call.prompt_tokens,
        "cached": call.cached_tokens,
        "out": call.completion_tokens,
        "forced": call.forced_tokens,
        "text": _cut(call.text),
        "finish": call.finish,
        "error": call.error,
        "base": None if base is None else base.id,
        "chars": 0 if base is None else _utf16(base.prompt_text[: shared.chars]),
        "prompt_text": call.prompt_text[shared.chars :] or "\n".join(call.texts),
        "rerendered": call.rerendered,
        "sampling": _sampling(call),
        "choices": list(call.choices),
        "probabilities": [p for p in call.probabilities if p == p],  # NaN is not JSON
        "method": call.method,
        "fork_len": call.fork_len,
        "siblings": call.siblings,
    }


def _sampling(call: CallRecord) -> dict[str, Any]:
    """Sampling parameters that are not the default; the text of a constraint is cut."""
    if call.sampling is None:
        return {}
    fields: dict[str, Any] = msgspec.to_builtins(call.sampling)
    return {name: str(value)[:2_000] if name in KINDS else value for name, value in fields.items()}


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return text[:MAX_TEXT_CHARS] + f"\n[{len(text) - MAX_TEXT_CHARS:,} more characters]"


def _utf16(text: str) -> int:
    """Length of the text in UTF-16 code units, as JavaScript counts."""
    return len(text.encode("utf-16-le", errors="surrogatepass")) // 2
