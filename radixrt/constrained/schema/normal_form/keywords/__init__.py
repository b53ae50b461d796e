"""The keywords of JSON Schema: a class for each keyword, with its meaning."""
