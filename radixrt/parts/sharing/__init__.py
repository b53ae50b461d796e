"""Sharing: cascade attention, which computes attention over a prefix once for all rows that share the prefix."""
