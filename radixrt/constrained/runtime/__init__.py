"""The grammar of one running request: masks, forced tokens, and the shortest completion of its text."""
