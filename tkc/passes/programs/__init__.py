"""Parts of schedule-programs: the order of programs, clusters, co-resident programs, split-K,
stream-K.
"""
