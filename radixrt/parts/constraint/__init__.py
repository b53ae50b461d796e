"""Constraint: rows whose tokens a grammar allows, forces and ends."""
