"""Plans with warp roles, one decision a file; planning/hopper.py takes them in turn."""
