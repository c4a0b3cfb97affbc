"""The executable meaning of the IR.

level0      the specification: tile programs in NumPy, one program after another
dataflow    levels 1 to 3: layouts ignored, shared buffers as arrays, copies that are made when they
            are waited for
level4      threads: roles, barriers, fences and asynchronous copies under a scheduler, with the
            happens-before check
"""
