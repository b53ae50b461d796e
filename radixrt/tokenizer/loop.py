"""`serve`: the main loop of the tokenizer process."""

from __future__ import annotations

from typing import NoReturn

import zmq

from radixrt.channel import ZmqInbox
from radixrt.heartbeat import IDLE_WAKE_S, Heartbeat
from radixrt.messages.client import ToTokenizer
from radixrt.tokenizer.worker import TokenizerWorker


def serve(worker: TokenizerWorker, inbox: ZmqInbox[ToTokenizer], heartbeat: Heartbeat) -> NoReturn:
    """Handle messages as they come, and start requests as soon as their prompts are encoded.

    The heartbeat stands for all threads: it stops while the encoding of a text, or the decoding of a picture, takes
    longer than it can.
    """
    poller = zmq.Poller()
    poller.register(inbox.socket, zmq.POLLIN)
    encoded = worker.queue.fileno()
    if encoded is not None:
        poller.register(encoded, zmq.POLLIN)
    while True:
        message = inbox.recv()
        if message is None:
            poller.poll(int(IDLE_WAKE_S * 1000))
            worker.poll()
        else:
            worker.handle(message)
        if not worker.is_overdue():
            heartbeat.beat()
