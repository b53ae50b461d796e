"""Reserved slots of recurrent states, on which scheduler and runner agree; see `StateSection`.

`radixrt.mem_cache` imports this module, which therefore does not import msgspec.
"""

ZERO_STATE = 0
"""State slot of a sequence without tokens: all zeros, and never written."""
SCRATCH_STATE = 1
"""State slot that padding rows read and write; its content is finite and means nothing."""
RESERVED_STATES = 2
"""Number of reserved slots, which no sequence owns. Slots from RESERVED_STATES on belong to sequences."""
