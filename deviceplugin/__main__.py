"""`python -m deviceplugin`."""

from program.interrupt import end_quietly

end_quietly()

from deviceplugin.cli import main  # noqa: E402 - Ctrl-C is answered while it loads

if __name__ == "__main__":
    main()
