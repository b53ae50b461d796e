"""Programs: hints of clients about the next calls of programs of many calls."""
