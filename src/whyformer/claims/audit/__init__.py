"""The claims that can be tried on any subject, and the rule that they share."""
