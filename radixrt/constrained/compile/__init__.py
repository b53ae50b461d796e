"""Compilation of constraints into grammars: worker processes, caches, and `GrammarManager`."""
