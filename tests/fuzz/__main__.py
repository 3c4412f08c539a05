"""Coverage-guided fuzzing of one decoder: `python -m tests.fuzz TARGET --seconds N`, which `make fuzz` calls for each.

It begins with the corpus of `tests/data/fuzz` and valid inputs. Inputs that reach new code are added to `build/fuzz`.
An input that breaks the decoder is written there as `TARGET-crash-…`; `--keep FILE` adds it to the corpus, for tests.
"""

import argparse
import base64
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import atheris

LONGEST_INPUT = 4_096
SLOWEST_SECONDS = 5
MOST_MIB = 1_024
FOUND = Path("build", "fuzz")

with atheris.instrument_imports():
    from tests.fuzz.targets import TARGETS, corpus, corpus_file, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="Add the input to the corpus, and search nothing.")
    given = parser.parse_args()
    if given.keep is not None:
        keep(given.target, given.keep.read_bytes())
    else:
        search(given.target, given.seconds)


def keep(name: str, data: bytes) -> None:
    inputs = [base64.b64encode(each).decode() for each in (*corpus(name), data)]
    corpus_file(name).write_text(json.dumps(inputs, indent=0) + "\n")


def search(name: str, seconds: int) -> None:
    """Ends the process: with status 0 if nothing was found."""
    target, folder = TARGETS[name], FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate((*target.seeds(), *corpus(name))):
        (folder / f"seed-{number}").write_bytes(seed)
    words_file = FOUND / f"{name}.dict"
    words_file.write_text("".join(f'"{word}"\n' for word in dictionary(target.seeds())))
    flags = [f"-max_len={LONGEST_INPUT}", f"-timeout={SLOWEST_SECONDS}", f"-rss_limit_mb={MOST_MIB}"]
    flags += [f"-max_total_time={seconds}", f"-artifact_prefix={FOUND}/{name}-", f"-dict={words_file}"]
    atheris.Setup([sys.argv[0], *flags, "-print_final_stats=1", str(folder)], lambda data: run(target, data))
    atheris.Fuzz()


def dictionary(seeds: Iterable[bytes]) -> list[str]:
    """Returns the words of valid inputs, escaped as libFuzzer reads them. Coverage cannot lead the search inside
    msgspec, which is compiled.
    """
    words = {word for seed in seeds for word in re.findall(rb'"[^"\n]{1,40}":?|[\w./-]{1,40}', seed)}
    return sorted("".join(f"\\x{byte:02x}" for byte in word) for word in words)


if __name__ == "__main__":
    main()
