"""Route handlers: from a typed body to the engine's requests, and from the engine's outputs to an answer's body."""
