"""`Run`: the part of a running program that its branches and calls use: backend, log, prompts, events."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixrt.lang.backends.base import Backend, Unsupported
from radixrt.lang.core.answer_type import AnswerType
from radixrt.lang.core.chat_format import ChatFormat
from radixrt.lang.core.prompt import Composed, Composer
from radixrt.lang.core.runtime import runtime
from radixrt.lang.core.shared_calls import SharedCalls
from radixrt.lang.core.streaming import Streamed, StreamEvent
from radixrt.lang.core.transcript import Transcript
from radixrt.lang.errors import ProgramCancelled
from radixrt.lang.observe.run_log import BranchRecord, CallRecord, RunLog
from radixrt.tokenizer.chat_template import ChatTemplate

if TYPE_CHECKING:
    from radixrt.chat.dialect import Dialect

Publish = Callable[[StreamEvent], None]

_composers: weakref.WeakKeyDictionary[Backend, asyncio.Task[Composer]] = weakref.WeakKeyDictionary()


class Run:
    """See the module's docstring. `Program` adds the branches and the end of the run.

    Args:
        name: name of the function.
        publish: takes the events of a stream, in the event loop; None for a program that is not streamed.
        awaits: the program is an `async def`, which awaits its reads.

    Attributes:
        body_done: the function has returned, so no more steps follow.
        closed: the run is over.
        cancelled: the run was ended early.
        tasks: tasks of the event loop that work for this run.
        calls: open calls; equal calls share their outputs.
    """

    def __init__(self, name: str, backend: Backend, *, publish: Publish | None = None, awaits: bool = False) -> None:
        self.backend = backend
        self.awaits = awaits
        self.runtime = runtime()
        self.log = RunLog(uuid.uuid4().hex, name, backend.name, dry_run=backend.dry_run)
        self.body_done = self.closed = self.cancelled = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls = SharedCalls(backend)
        self._publish = publish
        self._composer: Composer | None = None

    @property
    def streams(self) -> bool:
        return self._publish is not None

    def cancellation(self, branch: str) -> ProgramCancelled:
        return ProgramCancelled(f"{self.log.name}, branch {branch}: cancelled")

    def read_text(self, transcript: Transcript) -> str:
        """The text of a transcript, for the program's thread. Blocks until the chat template is known."""
        if self._composer is not None:
            return self._composer.text(transcript)

        async def text() -> str:
            return (await self._get_composer()).text(transcript)

        return self.runtime.wait(self.runtime.submit(text()), "this after the first call")

    def check_picture(self, *, in_message: bool) -> None:
        """Check, in the program's thread, that the model can read a picture; see `Composer.check_picture`.

        An async program does not wait for the backend's answer, if that has not come yet: its next call checks.
        """
        if self._composer is None:
            found = self.runtime.submit(self._get_composer())
            if self.awaits:
                return
            self.runtime.wait(found, "this after the first call")
        assert self._composer is not None
        self._composer.check_picture(in_message=in_message)

    # --- in the event loop ---

    async def compose(self, transcript: Transcript) -> Composed:
        """The prompt of a call that continues a transcript. Raises RequestError; see `Composer`."""
        return (await self._get_composer()).compose(transcript)

    async def dialect(self) -> Dialect | None:
        """The model's tool dialect; None where the backend writes tools into the prompt."""
        return (await self._get_composer()).dialect

    async def prefix_length(self, transcript: Transcript) -> int:
        """Return the number of leading tokens that the branches of a fork will share.

        The tokens up to the last answer are known. Without an answer the backend tokenizes the whole transcript; the
        result is 0 if the backend fails.
        """
        if not self.backend.tokens or transcript is None:
            return 0
        try:
            composed = await self.compose(transcript)
            if composed.known:
                return composed.known
            return len(await self.backend.tokenize(composed.prompt.parts, composed.prompt.pictures))
        except Exception:  # the length is only a hint; the calls themselves report errors
            return 0

    def publish(self, record: CallRecord, branch: BranchRecord, kind: AnswerType | None, streamed: Streamed) -> None:
        """Send an event of a call to the stream's reader, if there is one."""
        if self._publish is None:
            return
        values = streamed.values
        done = values is not None
        value = None if values is None else (values[0] if len(values) == 1 else list(values))
        so_far = record.text if done else streamed.so_far
        event = StreamEvent(
            record.name, streamed.text, so_far, branch.id, branch.key, record.id, record.index, done, value, kind
        )
        self._publish(event)

    def release(self, branch: str | None) -> None:
        """Tell the backend that a branch, or the program, makes no more calls. A failure is ignored."""

        async def tell() -> None:
            with contextlib.suppress(Exception):
                await self.backend.release(self.log.program, branch)

        if not self.log.calls:
            return
        task = asyncio.get_running_loop().create_task(tell())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _get_composer(self) -> Composer:
        if self._composer is None:
            task = _composers.get(self.backend)
            if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
                task = _composers[self.backend] = asyncio.get_running_loop().create_task(_make_composer(self.backend))
            self._composer = await asyncio.shield(task)
        return self._composer


async def _make_composer(backend: Backend) -> Composer:
    found = await backend.chat_template()
    try:
        image_token: str | Unsupported = await backend.image_token()
    except Unsupported as error:
        image_token = error
    if found is None:
        return Composer(None, tokens=backend.tokens, image_token=image_token)
    from radixrt.lang.core.tools import find_dialect

    chat_format = ChatFormat(found["templates"], found["special_tokens"])
    dialect = await find_dialect(backend, ChatTemplate(found["templates"], found["special_tokens"]))
    return Composer(chat_format, tokens=backend.tokens, dialect=dialect, image_token=image_token)
