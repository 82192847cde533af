"""Encoders that the circulant one is compared with."""
