"""Builds the image twice and looks into it: `python -m daemonset.image_check`, which `make image-check` calls.

Both must have one digest, from the same commit and base. Then it prints what is in the image that must not be there,
imports every module of ours, starts the programs as the image's own user, and lists the licences of what it contains.
With `--simulated` it does so with the image for simulated GPUs, which may add only the simulation.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daemonset import image, prune
from daemonset.image_archive import Archive, ArchivedFile

BILL = "opt/topogpu/sbom.cdx.json"
MOST_MIB = 80
"""Folders beside the base."""
_UNWANTED = re.compile(
    r"(^|/)s?bin/(pip3?|gcc|cc|c\+\+|g\+\+|clang|make)[-.\d]*$|^opt/(.*/)?(pip|simulation|tests|benchmarks|hypothesis|pytest|kubectl[-_]\w+)$"
)
_LICENCE_FILE = re.compile(r"/site-packages/([^/]+)-[^-/]+\.dist-info/(?:.*/)?(?:LICEN[CS]E|COPYING)[^/]*$")
USER = "65532:65532"
SIMULATION = "opt/topogpu-simulated/"
_SIMULATES = (
    "NODE_NAME=n python -m simulation.on_node dgx-a100 /tmp/simulated && "
    "TOPOGPU_FAKE_NVML_MACHINE=/tmp/simulated/machine HOST_ROOT=/tmp/simulated python -m deviceplugin devices"
)
_STARTED = ("deviceplugin --version", "scheduler_ext --version", "deviceplugin run --help", "scheduler_ext --help")


def differences(one: Mapping[str, ArchivedFile], other: Mapping[str, ArchivedFile]) -> list[str]:
    """Returns a line for each file that only one of two images has, or that differs."""
    lines = [f"{name}: only once" for name in sorted(one.keys() ^ other.keys())]
    return lines + [f"{name}: differs" for name in sorted(one.keys() & other.keys()) if one[name] != other[name]]


def unwanted(files: Mapping[str, ArchivedFile], user: str) -> list[str]:
    """Returns a sentence for everything that the image must not be."""
    problems = [f"/{name} is in the image." for name in sorted(files) if _UNWANTED.search(name)]
    problems += [
        f"/{name} can be written by everybody."
        for name, file in sorted(files.items())
        if name.startswith("opt/") and file.mode & 0o002 and not _is_link(file)
    ]
    if user != USER:
        problems.append(f"The image runs as {user or 'root'}.")
    size = sum(file.size for name, file in files.items() if name.startswith("opt/")) / 2**20
    if size > MOST_MIB:
        problems.append(f"/opt has {size:.0f} MiB, which is more than {MOST_MIB}.")
    return problems


def licences(bill: Mapping[str, Any]) -> dict[str, str]:
    """Returns the licences of each component of a CycloneDX document; empty where it names none."""
    return {
        component["name"]: " ".join(
            one.get("expression") or one["license"].get("id") or one["license"].get("name", "")
            for one in component.get("licenses", ())
            if "expression" in one or one["license"].get("id") or len(one["license"].get("name", "")) < 100
        )
        for component in bill["components"]
    }


def with_licence_file(files: Mapping[str, ArchivedFile]) -> set[str]:
    """Names of the packages whose licence lies beside their metadata."""
    return {match[1].lower().replace("_", "-") for match in map(_LICENCE_FILE.search, files) if match}


def added(product: Archive, simulated: Archive) -> list[str]:
    """Returns a sentence for each file in the image for simulated GPUs that is not ours."""
    count = len(product.layers())
    if simulated.layers()[:count] != product.layers():
        return ["The image for simulated GPUs is not built on the product's image."]
    outside = [name for name in simulated.files(count) if not f"{name}/".startswith(SIMULATION) and name != "opt"]
    problems = [f"/{name} of the image for simulated GPUs is outside of /{SIMULATION}" for name in sorted(outside)]
    user = simulated.configuration.get("User", "")
    return problems + ([] if user == USER else [f"The image for simulated GPUs runs as {user or 'root'}."])


def twice(build: Callable[[bool], Path]) -> Archive:
    """Returns what is built twice with the same digest; `build` gets whether it is the second time.
    Raises image.CannotBuild.
    """
    first = Archive(build(False))
    second = Archive(build(True))
    if first.digest != second.digest:
        lines = differences(first.files(), second.files()) or ["Only times, orders or configurations differ."]
        raise image.CannotBuild("Two builds of this commit differ:\n" + "\n".join(lines[:50]))
    print(f"{first.digest}, twice")
    return first


def look(archive: Archive, tag: str) -> None:
    """Looks into the product's image, which the engine has by this name. Raises image.CannotBuild."""
    files = archive.files()
    problems = unwanted(files, archive.configuration.get("User", ""))
    if problems:
        raise image.CannotBuild("\n".join(problems))
    size = sum(file.size for name, file in files.items() if name.startswith("opt/")) / 2**20
    print(f"{size:.0f} MiB beside the base, {sum(file.size for file in files.values()) / 2**20:.0f} MiB in all")
    engine = image.find_engine()
    loaded = engine.start(tag, ["python", "-c", prune.IMPORT_ALL]).splitlines()
    print(f"every module of {', '.join(prune.OURS)} imports; {len(loaded)} files are loaded")
    for words in _STARTED:
        said = engine.start(tag, ["python", "-m", *words.split()])
        print(f"{words}: {said.splitlines()[0]}")
    found = licences(json.loads(archive.read(BILL)))
    silent = sorted({name for name, words in found.items() if not words} - with_licence_file(files))
    if silent:
        raise image.CannotBuild(f"No licence is known of {', '.join(silent)}.")
    for words, count in sorted(Counter(words or "its LICENSE file" for words in found.values()).items()):
        print(f"{count:3} {words}")


def look_at_simulated(product: Archive, simulated: Archive, tag: str) -> None:
    """Raises image.CannotBuild."""
    if problems := added(product, simulated):
        raise image.CannotBuild("\n".join(problems))
    print(image.find_engine().start(tag, ["sh", "-c", _SIMULATES]).strip())


def main() -> None:
    wanted = image.parser("make image-check", "Build the image twice and look into it.")
    wanted.add_argument("--simulated", action="store_true", help="Also the image for nodes that simulate GPUs.")
    given = wanted.parse_args()
    tag = f"{image.tag_of(given)}-first"

    def build(again: bool) -> Path:
        return image.build(given.base, tag.replace("-first", "-second") if again else tag, given.arch, fresh=again)

    product = twice(build)
    look(product, tag)
    if given.simulated:
        simulated = twice(lambda _: image.build_simulated(given.base, tag, given.arch))
        look_at_simulated(product, simulated, image.simulated(tag))


def _is_link(file: ArchivedFile) -> bool:
    return file.mode & 0o777 == 0o777 and file.size == 0


if __name__ == "__main__":
    try:
        main()
    except image.CannotBuild as problem:
        raise SystemExit(str(problem)) from None
