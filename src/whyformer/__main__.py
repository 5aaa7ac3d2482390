"""``python -m whyformer`` is the ``whyformer`` command."""

from whyformer.cli import main

main()
