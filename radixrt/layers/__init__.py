"""Layers that models are built from, and the small operations between their linear layers."""
