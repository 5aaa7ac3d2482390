"""Views of findings; this room knows findings and nothing else."""
