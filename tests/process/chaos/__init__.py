"""Chaos: processes of a server under a mixed load are killed and stopped at random, and the answers are checked."""
