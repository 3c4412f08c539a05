"""`python -m deviceplugin`."""

from deviceplugin.cli import main

if __name__ == "__main__":
    main()
