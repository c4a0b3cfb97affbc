"""Other projects' tests of their Triton kernels, with tkc in Triton's place; none is kept here."""
