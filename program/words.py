"""Words, numbers and sentences as people read them. No IO."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches


def gib(mib: int) -> str:
    """Returns `39.6 GiB`; small amounts in MiB."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def spaced(number: int) -> str:
    """Returns `30 000`."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """Returns `1 GPU`, `3 GPUs`."""
    return f"{spaced(number)} {noun}" if number == 1 else f"{spaced(number)} {noun}s"


def ranges(indices: Sequence[int]) -> str:
    """Returns `0–3, 6`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def model(type_: str) -> str:
    """Returns `A100-SXM4-80GB` of `NVIDIA A100-SXM4-80GB`: all models are NVIDIA's."""
    return type_.removeprefix("NVIDIA ").removeprefix("NVIDIA-")


def printable(text: str) -> str:
    """Removes control characters for terminals, because a model's name or a condition's message is not trusted."""
    return "".join(each for each in text if each.isprintable() or each == "\n")


def escaped_label(value: str) -> str:
    """Returns the value of a label as Prometheus' text has it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def nearest(name: str, known: Collection[str]) -> str:
    """Returns `did you mean dgx2-16x-v100-32g? ` or the like, or nothing. Names that contain it come first."""
    plain, wanted = {_plain(each): each for each in known}, _plain(name)
    near = [short for short in plain if wanted and wanted in short][:3] or get_close_matches(wanted, plain, n=1)
    return f"did you mean {' or '.join(plain[short] for short in near)}? " if near else ""


def _plain(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


def enumerated(words: Sequence[str], most: int = 4) -> str:
    """Returns `a, b and c`, or `a, b, c, d and 5 more`. Kubelet cuts an event's message at 1024 bytes."""
    shown, more = list(words[:most]), len(words) - most
    if more > 0:
        shown.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "nothing"


def capital(clause: str) -> str:
    """Returns the clause with a capital letter."""
    return clause[:1].upper() + clause[1:]


def as_sentence(clause: str) -> str:
    """Returns the clause with a capital letter and a full stop."""
    return capital(clause).rstrip(".") + "."
