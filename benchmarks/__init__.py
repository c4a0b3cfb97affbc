"""Races against torch, Triton, numpy and the bound; `python benchmarks/run.py` runs them."""
