"""Attacks on cbeindex with fresh seeds: damaged files, operations that fail half way, processes that are killed."""
