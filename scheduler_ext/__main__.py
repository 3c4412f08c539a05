"""`python -m scheduler_ext`: the extender's command line."""

from program.interrupt import end_quietly

end_quietly()

from scheduler_ext.cli import main  # noqa: E402 - Ctrl-C is answered while it loads

if __name__ == "__main__":
    main()
