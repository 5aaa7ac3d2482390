"""Where the ``whyformer`` command begins: Ctrl-C is heard before anything that takes time is imported."""

import os
import signal


def _leave(_signal: int, _frame: object) -> None:
    """One line, and out: nothing has been begun that wants an end."""
    os.write(2, b"whyformer: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line, and exit with its status."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is ignored
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from whyformer import cli

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
