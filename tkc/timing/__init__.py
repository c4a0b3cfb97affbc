"""Level 4 in time: what operations ask of the engines, a timeline, and how long a launch takes."""
