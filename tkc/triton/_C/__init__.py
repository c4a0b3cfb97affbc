"""`triton._C`: in Triton a library of C++; here what programs import of it by name."""
