"""Attacks on cbeindex with fresh seeds: damaged files, operations that fail midway, processes that are killed."""
