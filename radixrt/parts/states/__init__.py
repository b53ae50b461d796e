"""States: slots for the states of recurrent layers, in addition to the KV slots, for hybrid models."""
