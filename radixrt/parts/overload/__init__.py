"""Overload: requests that would wait too long are refused when they arrive."""
