"""The parts of schedule-programs: the order in which programs run, how they stand side by side and
are claimed, and how several share one block of the output.
"""
