"""GPUs as data: one JSON file a device, each number with where it is from.

    resolved("h200")        a Device: what it is made of, rates that it reaches, what the engines of
                            a multiprocessor do, costs of the closed-form model
    resolved("h200,multiprocessors=114,bandwidth=2000")
                            the same with what a driver says of a GPU that no file describes
    nearest(observed)       such a text for a GPU at hand

No other file of tkc has a number that was measured (tests/test_devices.py says how it tells). A
file has six sections; each number is a pair, [value, source], and `sources` says what a source is:

    chip       what the device is made of, by its vendor
    rates      what it reaches: measured (`tkc calibrate`), or a share of what the vendor promises
    engines    what a multiprocessor's engines do, for timelines (tkc/timing/simulation.py)
    costs      of the closed-form model (tkc/passes/planning/cost.py)
    assembler  registers that ptxas makes do with, for plans
    attention  what its programs take (tkc/kernels/attention_blocks.py)
    moving     what programs without dots take (tkc/passes/planning/bandwidth.py)

A file may leave the last four to another one's, which `like` names: nobody measured them there.
Files in the folder TKC_DEVICES come before those of tkc.
"""

from tkc.devices.device import Assembler, Attention, Chip, Costs, Device, Engines, Rates
from tkc.devices.files import Observed, names, nearest, own_files, read, resolved, written

__all__ = [
    "Assembler",
    "Attention",
    "Chip",
    "Costs",
    "Device",
    "Engines",
    "Observed",
    "Rates",
    "names",
    "nearest",
    "own_files",
    "read",
    "resolved",
    "written",
]
