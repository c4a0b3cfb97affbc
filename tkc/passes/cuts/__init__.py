"""Tiling a program along one axis of its tiles, so that what does not fit is computed in parts.

`axes.py` follows an axis through one operation, `cut.py` finds what has to be cut, and `parts.py`
writes the parts. fit-results, fit-dots, fit-rows and stream-operands loop over parts; split-sums
writes all of them.
"""
