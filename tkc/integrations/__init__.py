"""What other libraries have, computed by tkc's kernels: their functions by name, their models."""
