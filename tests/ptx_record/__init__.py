"""A record of the PTX that the compiler emits, so that a refactoring can be shown to change none.

    python -m tests.ptx_record            compiles every recorded kernel and compares; exit status 1
                                          where one differs
    python -m tests.ptx_record --update   writes record.json anew (after a change of PTX that is
                                          meant, and explained)

`cases.py` names the kernels, `record.json` has one hash a kernel and target. Source lines, comments
and names (of the kernel, of labels) are left out of the hash. `make ptx-record` runs the first
command.
"""
