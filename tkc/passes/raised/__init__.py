"""Accesses by pointers as blocks of arrays: `blocks.py` says what a block is of, `outer.py` which
axes it lacks, `arrays.py` of which arrays a kernel's own ones are parts, and `writing.py` makes the
arrays and writes the blocks. raise-pointers recognises them.
"""
