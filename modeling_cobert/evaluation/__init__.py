"""Measures, significance, cost and reports."""
