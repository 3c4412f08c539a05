"""A computer of its own as far as kubelet can tell: mounts, processes and cgroups that end when its power is cut."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_INIT = Path(__file__).with_name("machine_init.py")
_CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "topogpu-node-"
_PARENT = "/var/tmp"
"""A short path, because sockets lie below it."""
_KEPT = ("kubelet", "runtime", "log", "upper", "work")
_CLEARED = ("run",)
_SECONDS = 60.0
_NVIDIA_MAJOR = 195
_SHOWN_LINES = 15


class MachineFailed(Exception):
    """It did not start, or one of its programs ended; holds the last lines."""


def missing() -> str:
    """What this host lacks for such a machine; empty when it has all."""
    if os.geteuid() != 0:
        return "it needs root: it makes mount and process namespaces, and cgroups"
    lacking = [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]
    if lacking:
        return f"it needs {' and '.join(lacking)} (Debian: util-linux, mount)"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True, check=False
    )
    return f"it may not make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def make_device_files(folder: Path, gpus: int) -> None:
    """Those of NVIDIA's driver, with none behind them."""
    folder.mkdir(parents=True)
    for name, minor in (("nvidiactl", 255), *((f"nvidia{gpu}", gpu) for gpu in range(gpus))):
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(_NVIDIA_MAJOR, minor))


class Inside:
    """A program of the machine, its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._output: IO[bytes] = log.open("ab")
        self._waiter = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(environment),
        )
        # nsenter stays outside and hands on no signals.
        self._pid = _only_child(self._waiter)

    def is_running(self) -> bool:
        return self._waiter.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM, grace_seconds: float = _SECONDS) -> None:
        """`how`, then SIGKILL after the grace."""
        for number in (how, signal.SIGKILL):
            if self.is_running():
                with suppress(ProcessLookupError):
                    os.kill(self._pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._waiter.wait(grace_seconds)
                break
        self._output.close()

    def wait_for(self, ready: Callable[[], bool], seconds: float = 2 * _SECONDS) -> None:
        """Raises MachineFailed."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.is_running() or time.monotonic() > deadline:
                raise MachineFailed(f"{self.log.stem} is not ready:\n{self.last_lines()}")
            time.sleep(0.05)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def last_lines(self) -> str:
        return "\n".join(self.text().splitlines()[-_SHOWN_LINES:])


class Machine:
    """Its files lie in `folder`; inside, some of them are where kubelet and its runtime want them."""

    def __init__(self, layered: Sequence[str] = ()) -> None:
        """`layered` are folders of the host that it sees; what it writes there is its own."""
        _remove_abandoned()
        self._layered = tuple(layered)
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PARENT))
        self._claim = _claimed(self.folder)
        self.cgroup = self.folder.name
        """Everything that kubelet makes lies below it."""
        self._init: subprocess.Popen[bytes] | None = None
        self._pid = 0
        for name in (*_KEPT, *_CLEARED):
            (self.folder / name).mkdir()

    def power_on(self) -> None:
        """Raises MachineFailed."""
        for controller in _controllers():
            (controller / self.cgroup).mkdir(exist_ok=True)
        words = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", sys.executable, str(_INIT), str(self.folder)]
        words += self._layered
        self._init = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._init.stdout is not None
        assert self._init.stderr is not None
        if self._init.stdout.readline() != b"up\n":
            raise MachineFailed(f"the machine does not start: {self._init.stderr.read().decode()}")
        self._pid = _only_child(self._init)

    def power_off(self) -> None:
        """At once and for everything in it; what is kept over a reboot is kept."""
        if self._init is None:
            return
        init, self._init = self._init, None
        assert init.stdin is not None
        init.stdin.close()
        init.wait(_SECONDS)
        for stream in (init.stdout, init.stderr):
            if stream is not None:
                stream.close()
        for controller in _controllers():
            _remove_cgroup(controller / self.cgroup)
        for name in _CLEARED:
            shutil.rmtree(self.folder / name)
            (self.folder / name).mkdir()

    def discard(self) -> None:
        """Nothing is left of it."""
        self.power_off()
        shutil.rmtree(self.folder)
        os.close(self._claim)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Inside:
        """Its output goes to `<name>.log`, behind what an earlier start wrote."""
        return Inside(self._entering(command), self.folder / f"{name}.log", {**os.environ, **(environment or {})})

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """What it prints. Raises MachineFailed."""
        full = {**os.environ, **(environment or {})}
        done = subprocess.run(
            self._entering(command), check=False, capture_output=True, text=True, timeout=180, env=full
        )
        if done.returncode:
            raise MachineFailed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _entering(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--wd=/", "--", *command]


def _controllers() -> list[Path]:
    """The roots of the cgroup hierarchies: several with version 1, one with version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return sorted(path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())


def _claimed(folder: Path) -> int:
    """A lock that ends with this process. Raises BlockingIOError while another holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned() -> None:
    """Files and cgroups of machines whose tests were killed; the kernel has ended their processes and mounts."""
    for folder in Path(_PARENT).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            claim = _claimed(folder)
            for controller in _controllers():
                _remove_cgroup(controller / folder.name)
            shutil.rmtree(folder)
            os.close(claim)


def _only_child(process: "subprocess.Popen[bytes]") -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        try:
            found = children.read_text().split()
        except OSError:
            break
        if found:
            return int(found[0])
        if process.poll() is not None:
            break
        time.sleep(0.005)
    return process.pid


def _remove_cgroup(root: Path) -> None:
    """The kernel frees them a moment after their processes."""
    deadline = time.monotonic() + _SECONDS
    while root.exists():
        for path, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                os.rmdir(path)
        if time.monotonic() > deadline:
            raise MachineFailed(f"the cgroup {root} cannot be removed")
        time.sleep(0.05 if root.exists() else 0)
