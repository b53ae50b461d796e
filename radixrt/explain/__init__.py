"""Explanations of a constraint for people: what is enforced, what is refused and why, and examples of valid outputs."""

from radixrt.explain.explanation import Explainer, explain
from radixrt.explain.report import Report

__all__ = ["Explainer", "Report", "explain"]
