"""Mask libraries: the interface of one, a writer and a matcher for each, and the choice between them."""
