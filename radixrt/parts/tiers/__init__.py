"""Keys and values in host memory and on disk: prefixes that the KV pool evicts, and prefixes of earlier runs."""
