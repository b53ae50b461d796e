"""Overload: refuses requests on arrival that would wait too long."""
