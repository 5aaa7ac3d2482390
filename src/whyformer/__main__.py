"""``python -m whyformer`` is the ``whyformer`` command."""

from whyformer.entry import main

main()
