"""Data: vector sources, sparse rows, the bit layout of codes, columns, ids, and readers of vector files."""
