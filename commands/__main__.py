"""`python -m commands ...`."""

from commands.cli import main

main()
