"""The number of state slots that a rank's memory should hold, beside keys and values."""

from __future__ import annotations

from radixrt.errors import ConfigError
from radixrt.messages.state_slots import RESERVED_STATES

MIN_CHECKPOINT_TOKENS, MAX_CHECKPOINT_TOKENS = 64, 2000
CHECKPOINT_SHARE = 20
"""Memory of the keys and values in the KV pool for each state in the radix tree, in units of the state's memory. The
number of their tokens is within the two bounds above. Cached keys and values are reusable only up to a state."""


def size_states(
    *, wanted: int | None, free_bytes: int, state_bytes: int, token_bytes: int, kv_tokens: int | None,
    max_requests: int, context_length: int, most_bytes: int = 0,
) -> int:  # fmt: skip
    """Return the number of slots, both reserved ones included.

    Each running request gets a slot. The rest of the memory is divided between states in the radix tree and keys and
    values; see `CHECKPOINT_SHARE`.

    Args:
        wanted: slots that the user configured; None to size the pool from memory.
        free_bytes: memory for states, keys and values.
        state_bytes, token_bytes: of a slot, and of the keys and values of a token.
        kv_tokens: tokens that the KV pool will hold, where the user configured it.
        max_requests: maximum number of requests that run at once.
        context_length: longest sequence of one request, in tokens.
        most_bytes: bound of states, keys and values together; 0: none. States sized from memory take at most half,
            unless a single request needs more.

    Raises:
        ConfigError: the states do not fit; the message names the options to change.
    """
    least, running = RESERVED_STATES + 1, RESERVED_STATES + max_requests
    if wanted is not None:
        number = wanted
    else:
        tokens = min(MAX_CHECKPOINT_TOKENS, max(MIN_CHECKPOINT_TOKENS, CHECKPOINT_SHARE * state_bytes // token_bytes))
        most = running + max(max_requests, (kv_tokens or max_requests * context_length) // tokens)
        if kv_tokens is not None:
            number = min(most, (free_bytes - kv_tokens * token_bytes) // state_bytes)
        else:
            given = min(free_bytes, most_bytes) if most_bytes else free_bytes
            rest = given - running * state_bytes
            # Where not even the requests' own states fit, fewer requests run at once.
            fitting = given // (2 * state_bytes) if rest <= 0 else rest // (state_bytes + tokens * token_bytes)
            number = min(most, fitting if rest <= 0 else running + fitting)
        if most_bytes:
            number = min(number, most_bytes // (2 * state_bytes))
        number = max(least, number)
    if number < least or number * state_bytes > free_bytes:
        raise ConfigError(
            f"{number} recurrent states need {number * state_bytes / 2**30:.2f} GiB of the {free_bytes / 2**30:.2f} GiB"
            f" for states, keys and values; num_states must be at least {least} and fit: lower num_states or"
            " kv_cache_tokens, free memory or raise memory_fraction"
        )
    return number
