"""`python -m scheduler_ext`: the extender's command line."""

from scheduler_ext.cli import main

if __name__ == "__main__":
    main()
