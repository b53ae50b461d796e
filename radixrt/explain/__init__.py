"""Explanations of a constraint for people: the enforced and refused parts, with reasons and examples."""

from radixrt.explain.explanation import Explainer, explain
from radixrt.explain.report import Report

__all__ = ["Explainer", "Report", "explain"]
