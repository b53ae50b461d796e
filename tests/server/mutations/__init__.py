"""Mutated HTTP requests: bodies generated from the server's own structs, broken on purpose, against a real server."""
