"""Structural tags and tool calls: texts put together of free text and grammars."""
