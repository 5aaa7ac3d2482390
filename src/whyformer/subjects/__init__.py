"""What is examined, behind one call signature."""
