"""Measurements: one module for each question, run as `python -m benchmarks NAME`."""
