"""The ``whyformer`` command. Importing it is cheap: torch is imported by the commands that measure."""

from whyformer.cli.app import main

__all__ = ["main"]
