"""`DeepCheck`: takes one token, or one vector, from the model, to see that every process of the engine works."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from radixrt.client.answers import raise_for_error
from radixrt.client.engine_client import EngineClient
from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, InputRow, TokenInput
from radixrt.messages.request import Envelope
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.prompts import new_rid

TIMEOUT_S = 20.0
PRIORITY = 1 << 20
"""Above that of clients' requests, so that the check does not wait in a long queue."""


class DeepCheck:
    """Checks of one engine. Callers at the same time share one check, so that probes are no load."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._running: asyncio.Task[float] | None = None

    async def run(self) -> float:
        """Return the time that a token took, in seconds.

        Raises:
            RequestError: the engine refused or failed, or did not answer in time.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._generate())
        return await asyncio.shield(self._running)

    async def _generate(self) -> float:
        started = time.perf_counter()
        sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        info, token = self._client.info, TokenInput(pack_i32([0]))
        envelope = Envelope(new_rid(), PRIORITY)
        request = ClientRequest(envelope, [InputRow(token)], sampling)
        if info is not None and not info.generates:
            request = ClientRequest(envelope, [InputRow(token, "last")], task="classify" if info.labels else "embed")
        try:
            async with asyncio.timeout(TIMEOUT_S), aclosing(self._client.astream(request)) as outputs:
                async for output in outputs:
                    if output.finish is not None:
                        raise_for_error(output.finish)
        except TimeoutError:
            raise RequestError(f"the model made no token within {TIMEOUT_S:g} s", code="timeout", status=503) from None
        return time.perf_counter() - started
