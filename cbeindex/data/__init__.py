"""What goes in: vector sources, sparse rows, the bit layout of codes, columns, readers of vector files."""
