"""States: slots of the states of recurrent layers, beside the KV slots of a hybrid model."""
