"""The parts of schedule-warpgroups for plans with roles."""
