"""Rows at rest: immutable segments, the growing buffer, snapshots."""
