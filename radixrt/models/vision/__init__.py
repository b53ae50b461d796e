"""Towers, which encode images into rows that replace the embeddings of their positions in the text."""
