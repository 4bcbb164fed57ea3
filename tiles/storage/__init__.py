"""The layout of a matrix in tiles, and the memory in which a worker holds its columns."""
