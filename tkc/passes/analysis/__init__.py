"""Analyses of a program that several passes share. Nothing here changes it."""
