"""`python -m simulation`, and the console script `topogpu-sim`."""

from program.interrupt import end_quietly

end_quietly()

from simulation.cli import main  # noqa: E402 - Ctrl-C is answered while it loads

if __name__ == "__main__":
    main(prog_name="topogpu-sim")
