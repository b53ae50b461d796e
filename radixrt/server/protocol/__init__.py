"""Typed request bodies, the checks of their fields, and the parts that several answers share."""
