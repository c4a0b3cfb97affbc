"""The parts of select-layouts and swizzle-shared: which tiles share a layout, how elements move
along an axis, how operands and results pass through shared memory.
"""
