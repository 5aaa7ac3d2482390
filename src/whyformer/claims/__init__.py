"""What is asserted: each claim with its mathematics, its test and the model that breaks it."""
