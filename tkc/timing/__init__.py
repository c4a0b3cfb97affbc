"""Level 4 in time: what operations ask of the engines, when each warpgroup uses which, and how long
a launch takes.
"""
