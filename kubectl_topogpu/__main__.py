"""`python -m kubectl_topogpu`; as `kubectl-topogpu` in PATH it is `kubectl topogpu`."""

from program.interrupt import end_quietly

end_quietly()

from kubectl_topogpu.cli import main  # noqa: E402 - Ctrl-C is answered while it loads

if __name__ == "__main__":
    main()
