"""A module whose attribute a kernel under test assigns."""

total = 0
