"""`python -m commands ...` does what `ratchet ...` does."""

from commands.cli import main

main()
