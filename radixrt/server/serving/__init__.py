"""The state that all routes share, and the open requests of the engine."""
