"""Guards: conditions on a text that depend on earlier parts of the text, such as keys that must not repeat."""
