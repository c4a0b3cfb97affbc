"""The parts of select-layouts and swizzle-shared: who shares a layout, how elements move along an
axis, how factors and results pass through shared memory.
"""
