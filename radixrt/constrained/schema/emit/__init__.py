"""Productions and JSON Schema from the normal form."""
