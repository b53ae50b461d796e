"""Images: rows of an encoder pool that take the place of token embeddings."""
