"""Starts `kubectl topogpu` from its single file. It is `__main__` there; `DIGEST` is that of the file's contents."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the file starts with whatever python3 is in PATH
    sys.exit("kubectl-topogpu needs Python 3.11 or newer as python3, and this is " + sys.version.split()[0])

import atexit
import os
import shutil
import signal
import tempfile
import zipfile

_DIGEST = "DIGEST"

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))


def _unpacked() -> str:
    """Returns the folder with the modules: unpacked once into the user's cache, or else for this run."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    kept = os.path.join(cache, "kubectl-topogpu", _DIGEST)
    if not os.path.isdir(kept):
        try:
            os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
            made = tempfile.mkdtemp(dir=os.path.dirname(kept))
        except OSError:
            kept = made = tempfile.mkdtemp(prefix="kubectl-topogpu-")
            atexit.register(shutil.rmtree, made, ignore_errors=True)
        with zipfile.ZipFile(sys.argv[0]) as archive:
            archive.extractall(made, [name for name in archive.namelist() if name.startswith("site/")])
        if made != kept:
            try:
                os.rename(made, kept)
            except OSError:  # another process was faster
                shutil.rmtree(made, ignore_errors=True)
    return os.path.join(kept, "site")


sys.path[0] = _unpacked()
sys.dont_write_bytecode = False  # the folder is our own; to compile at each start takes as long as all the rest

if os.path.basename(sys.argv[0]).startswith("kubectl_complete"):
    from kubectl_topogpu.cli.completion import main as complete

    complete()
else:
    from kubectl_topogpu.cli import main

    main(prog_name="kubectl-topogpu")
