"""Reads: log-probabilities of given tokens and hidden states that requests read from forward passes."""
