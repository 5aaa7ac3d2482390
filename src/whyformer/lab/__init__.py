"""The lab: the claims told as a story."""
