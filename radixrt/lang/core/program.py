"""`Program`: one run of a function: its branches, its log, its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from radixrt.lang.backends.base import Backend
from radixrt.lang.core.answer_type import AnswerType
from radixrt.lang.core.branch import Branch, ForkPoint
from radixrt.lang.core.chat_format import ChatFormat
from radixrt.lang.core.prompt import Composed, Composer
from radixrt.lang.core.runtime import runtime
from radixrt.lang.core.streaming import Streamed, StreamEvent
from radixrt.lang.core.transcript import Transcript
from radixrt.lang.errors import ProgramCancelled
from radixrt.lang.observe.run_log import BranchRecord, CallRecord, RunLog
from radixrt.tokenizer.chat_template import ChatTemplate

if TYPE_CHECKING:
    from radixrt.chat.dialect import Dialect

RELEASE_S = 2.0
"""How long the end of a run waits for its backend to be told."""

Publish = Callable[[StreamEvent], None]

_composers: weakref.WeakKeyDictionary[Backend, asyncio.Task[Composer]] = weakref.WeakKeyDictionary()


class Program:
    """See the module's docstring.

    Args:
        name: of the function.
        publish: takes the events of a stream, in the event loop; None where nobody listens.
        awaits: the program is an `async def`, which awaits its reads.

    Attributes:
        body_done: the function has returned, so that no more steps come.
        closed: the run is over; `cancelled`: before its time.
        tasks: what the event loop is doing for it.
    """

    def __init__(self, name: str, backend: Backend, *, publish: Publish | None = None, awaits: bool = False) -> None:
        self.backend = backend
        self.awaits = awaits
        self.runtime = runtime()
        self.log = RunLog(uuid.uuid4().hex, name, backend.name)
        self.body_done = self.closed = self.cancelled = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self._publish = publish
        self._branches: list[Branch] = []
        self._composer: Composer | None = None
        self._thread: int | None = None
        self.log.emit("program_start")
        self.root = self.branch(None, "", 0, None)

    @property
    def streams(self) -> bool:
        return self._publish is not None

    @property
    def inside(self) -> bool:
        """Whether the caller is the function's own thread."""
        return self._thread == threading.get_ident()

    # --- the program's side ---

    def call(self, body: Callable[[], Any]) -> Any:
        """Run a `def` here and now."""
        self._thread = threading.get_ident()
        try:
            return body()
        finally:
            self._thread = None

    def branch(self, parent: Branch | None, key: str, group: int, origin: ForkPoint | None, number: int = 0) -> Branch:
        """A new branch; the number-th of its parent."""
        branch_id = "0" if parent is None else f"{parent.id}/{number}"
        record = BranchRecord(branch_id, None if parent is None else parent.id, key, group, time.monotonic())
        self.log.branches[branch_id] = record
        self.log.emit("branch_start", record)
        branch = Branch(self, record, origin)
        self._branches.append(branch)
        return branch

    def end(self) -> Future[None]:
        """The function has returned: done when all that it appended has been done, and then the run is over.

        The future raises what ended the program's own branch.
        """
        self.body_done = True
        return self.runtime.submit(self._end())

    def abort(self, error: BaseException) -> Future[None]:
        """Cancel everything: done when every open request has been closed."""
        self.cancelled = self.body_done = True
        self.log.error = self.log.error or str(error) or type(error).__name__
        return self.runtime.submit(self._abort())

    def read_text(self, transcript: Transcript) -> str:
        """The text of a transcript. Blocks until the chat template is known."""
        if self._composer is not None:
            return self._composer.text(transcript)

        async def text() -> str:
            return (await self._get_composer()).text(transcript)

        return self.runtime.wait(self.runtime.submit(text()), "this after the first call")

    # --- the loop's side ---

    async def compose(self, transcript: Transcript) -> Composed:
        """The prompt of a call that goes on from a transcript. Raises RequestError; see `Composer`."""
        return (await self._get_composer()).compose(transcript)

    async def dialect(self) -> Dialect | None:
        """How the model speaks of tools; None where the backend sees to that."""
        return (await self._get_composer()).dialect

    async def prefix_length(self, transcript: Transcript) -> int:
        """Tokens of a transcript that is about to fork; 0 where that cannot be known."""
        if not self.backend.tokens or transcript is None:
            return 0
        try:
            composed = await self.compose(transcript)
            return len(await self.backend.tokenize(composed.prompt.parts))
        except Exception:  # it is for a hint: what is wrong shows in the calls themselves
            return 0

    def publish(self, branch: Branch, record: CallRecord, kind: AnswerType | None, streamed: Streamed) -> None:
        if self._publish is None:
            return
        values = streamed.values
        done = values is not None
        value = None if values is None else (values[0] if len(values) == 1 else list(values))
        so_far = record.text if done else streamed.so_far
        event = StreamEvent(
            record.name, streamed.text, so_far, branch.id, branch.record.key, record.id, record.index, done, value, kind
        )
        self._publish(event)

    def cancellation(self, branch: str) -> ProgramCancelled:
        return ProgramCancelled(f"{self.log.name}, branch {branch}: cancelled")

    def release(self, branch: str | None) -> None:
        """Tell the backend that a branch, or the program, is done; that may fail without harm."""

        async def tell() -> None:
            with contextlib.suppress(Exception):
                await self.backend.release(self.log.program, branch)

        if not self.log.calls:
            return
        task = asyncio.get_running_loop().create_task(tell())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _end(self) -> None:
        await self._close()
        error = self._branches[0].error
        if error is not None:
            raise error

    async def _abort(self) -> None:
        if not self.closed:
            for branch in self._branches:
                branch.abort()
            await self._close()

    async def _close(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)
        if self.closed:  # an abort met the end
            return
        self.closed = True
        for branch in self._branches:
            branch.leave()
        error = self._branches[0].error
        if error is not None:
            self.log.error = self.log.error or str(error)
        self.log.end = time.monotonic()
        self.log.emit("program_end")
        self.release(None)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=RELEASE_S)

    async def _get_composer(self) -> Composer:
        if self._composer is None:
            task = _composers.get(self.backend)
            if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
                task = _composers[self.backend] = asyncio.get_running_loop().create_task(_make_composer(self.backend))
            self._composer = await asyncio.shield(task)
        return self._composer


async def _make_composer(backend: Backend) -> Composer:
    found = await backend.chat_template()
    if found is None:
        return Composer(None, tokens=backend.tokens)
    from radixrt.lang.core.tools import find_dialect

    chat_format = ChatFormat(found["templates"], found["special_tokens"])
    dialect = await find_dialect(backend, ChatTemplate(found["templates"], found["special_tokens"]))
    return Composer(chat_format, tokens=backend.tokens, dialect=dialect)
