"""The parts of schedule-programs for plans in which several programs share one block of the output."""
