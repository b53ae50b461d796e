"""Constrained decoding: grammars, their compilation, and the token masks that enforce them."""
