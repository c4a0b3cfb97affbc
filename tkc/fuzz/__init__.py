"""What is run by the thousand to find what tests did not think of; `campaign` runs all of it: `make
fuzz`, or `python -m tkc.fuzz`.

grammar, writer, *_productions, productions
                                random kernels without undefined behaviour
check                           a kernel at every level, on the CPU and with other plans
kernels, programs               pipelined kernels and the golden programs, in random schedules of
                                the simulator
mutants                         the same with one change of their synchronisation, which the
                                simulator must find
host                            programs of the host that change what a kernel reads
mutation                        broken texts of IR and broken command lines
reducer                         a smaller module with the same fault
"""
