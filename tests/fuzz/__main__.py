"""Coverage-guided fuzzing of one decoder: `python -m tests.fuzz TARGET --seconds N`, which `make fuzz` calls for each.

Inputs that reach new code are added to the corpus in `build/fuzz`; `--keep` writes the smallest set of them that
reaches all of it to `tests/data/fuzz`. An input that breaks a decoder is written there too, as `crash-…`.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import atheris

LONGEST_INPUT = 4_096
SLOWEST_SECONDS = 5
MOST_MIB = 1_024
KEPT = Path(__file__).parent.parent / "data" / "fuzz"
FOUND = Path("build", "fuzz")

with atheris.instrument_imports():
    from tests.fuzz.targets import TARGETS, run


def dictionary(seeds: Iterable[bytes]) -> list[str]:
    """Returns the words of valid inputs, escaped as libFuzzer reads them. Coverage cannot lead the search inside
    msgspec, which is compiled.
    """
    words = {word for seed in seeds for word in re.findall(rb'"[^"\n]{1,40}":?|[\w./-]{1,40}', seed)}
    return sorted("".join(f"\\x{byte:02x}" for byte in word) for word in words)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--keep", action="store_true", help="Write the smallest corpus instead of searching.")
    given = parser.parse_args()
    target = TARGETS[given.target]
    kept, found = KEPT / given.target, FOUND / given.target
    for folder in (kept, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (found / f"seed-{number}").write_bytes(seed)
    words_file = FOUND / f"{given.target}.dict"
    words_file.write_text("".join(f'"{word}"\n' for word in dictionary(target.seeds())))
    words = [sys.argv[0], f"-max_len={LONGEST_INPUT}", f"-timeout={SLOWEST_SECONDS}", f"-rss_limit_mb={MOST_MIB}"]
    words += [f"-artifact_prefix={kept}/", "-print_final_stats=1", f"-dict={words_file}"]
    words += (
        ["-merge=1", str(kept), str(found)]
        if given.keep
        else [f"-max_total_time={given.seconds}", str(found), str(kept)]
    )
    atheris.Setup(words, lambda data: run(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
