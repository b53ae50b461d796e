"""Constraints looked at before anything is generated: `explain`, its report, and judging texts."""
