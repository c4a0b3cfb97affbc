"""Accesses by pointers as blocks of arrays: `blocks.py` says what a block is of, and `writing.py`
makes the arrays and writes the blocks. raise-pointers recognises them.
"""
