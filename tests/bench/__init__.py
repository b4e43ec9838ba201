"""Benchmarks: `./dev bench` or `python -m tests.bench [NAME ...]`.

Each prints ratios of two things measured side by side in the same run, beside the aim. None of them is a test: a
busy machine must not fail a change.
"""
