"""`python -m simulation`, and the console script `topogpu-sim`."""

from simulation.cli import main

if __name__ == "__main__":
    main(prog_name="topogpu-sim")
