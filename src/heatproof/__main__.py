"""Run the command line with ``python -m heatproof``."""

from heatproof.cli import main

if __name__ == "__main__":
    main(prog_name="heatproof")
