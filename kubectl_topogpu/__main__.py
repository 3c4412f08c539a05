"""`python -m kubectl_topogpu`; as `kubectl-topogpu` in PATH it is `kubectl topogpu`."""

from kubectl_topogpu.cli import main

if __name__ == "__main__":
    main()
