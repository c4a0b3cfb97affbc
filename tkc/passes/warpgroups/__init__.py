"""Parts of schedule-warpgroups: how a program becomes a producer, consumers and a relayout role."""
