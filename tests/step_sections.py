"""Sections of steps, for tests that write or read them."""

from __future__ import annotations

from radixrt.messages.runner import ForwardStep
from radixrt.messages.sections import SHARING, STATES, SharedSection, StateSection, decode, encode


def sections(
    shared_segments: bytes = b"",
    shared_rows: bytes = b"",
    state_src: bytes = b"",
    state_dst: bytes = b"",
    state_cuts: bytes = b"",
) -> dict[str, bytes]:
    """`ForwardStep.sections` with what is given."""
    found = {}
    if shared_segments:
        found[SHARING] = encode(SharedSection(shared_segments, shared_rows))
    if state_src:
        found[STATES] = encode(StateSection(state_src, state_dst, state_cuts))
    return found


def shared_in(step: ForwardStep) -> SharedSection:
    """The step's shared prefixes; empty columns without any."""
    return decode(step.sections, SHARING, SharedSection) or SharedSection(b"", b"")


def states_in(step: ForwardStep) -> StateSection:
    """The step's state slots; empty columns without any."""
    return decode(step.sections, STATES, StateSection) or StateSection(b"", b"")
