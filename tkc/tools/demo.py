"""`tkc demo`: runs the examples, checks them against float64, prints a table, and writes what the compiler made of them.

What an example is.  Every examples/*.py (names starting with _ excepted) is a module with

    cases(device)   device "cuda" or "cpu".  Yields one dict a row of the table:
                        name        "softmax"
                        shape       (4096, 4096)
                        dtype       "float32"
                        run         a function of nothing that launches the kernel once (the demo times it and waits for the device)
                        error       a function of nothing, called after `run`: the largest error relative to float64, a float
                        tolerance   what `error()` may be at most
                        bytes, flops    optional: what one run moves or computes; the table then shows GB/s or TFLOP/s
    kernels()       Gives a list of (kernel, arguments, grid) to write out: `kernel` a @tkc.jit function, `arguments` a dict by parameter
                    name whose arrays are texts ("f32[4096, 4096]"), numbers are texts ("i32", "f32") or values, constexprs are values;
                    `grid` an int, a tuple or a function of the arguments, as in kernel[grid].

The demo imports the examples from a directory, so they may import one another by name.  For each kernel, out/<example>/ holds
NN-<pass>.mlir (IR after every pass for sm_90a), <target>.ptx for each of TARGETS, and the exported <kernel>.h and <kernel>.c.
"""
from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

TARGETS = ("sm_80", "sm_89", "sm_90a")
