"""Stages: rules of a model whose layers are divided among pipeline stages."""
