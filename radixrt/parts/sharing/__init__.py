"""Sharing: attention over prefixes that rows of a step share is computed once (cascade)."""
