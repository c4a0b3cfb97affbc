"""Questions about a program that several passes ask. Nothing here changes it."""
