"""What a program has in memory, and where it keeps it."""

import asyncio
import gc
import sys
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import is_dataclass
from itertools import chain
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import msgspec

Named = tuple[str, Any]
"""The store, as `Class.attribute`, a variable of a module or a function, or a task; and an object in it."""

_LEAVES = (ModuleType, CodeType, FrameType, asyncio.AbstractEventLoop)
_CONTAINERS = (tuple, list, dict, set, frozenset, deque)
_LOOKED_INTO = frozenset({"builtins", "collections", "functools", "weakref", "asyncio", "prometheus_client"})


def sizes(roots: Iterable[Named], ours: Collection[str]) -> Counter[str]:
    """How many objects each store has."""
    return Counter(store for store, _ in reached(roots, ours))


def roots_of(ours: Collection[str]) -> list[Named]:
    """Everything that stands in these packages' modules, caches of functions included, and the tasks under way."""
    modules = [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] in ours]
    found = [(f"{name}.{each}", value) for name, module in modules for each, value in vars(module).items()]
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return [*found, *(("a task", task.get_coro()) for task in tasks)]


def reached(roots: Iterable[Named], ours: Collection[str]) -> Iterator[Named]:
    """Each object once for each store. What is not of these packages' classes is looked into if it is a container, a
    function or the like: not the event loop, on which everything hangs.
    """
    left, seen = list(roots), set[tuple[str, int]]()
    while left:
        store, each = left.pop()
        if (store, id(each)) in seen or isinstance(each, _LEAVES):
            continue
        seen.add((store, id(each)))
        yield store, each
        left += _parts(store, each, ours)


def _parts(store: str, each: Any, ours: Collection[str]) -> Iterator[Named]:
    kind = each if isinstance(each, type) else type(each)
    package = kind.__module__.partition(".")[0]
    if package in ours:
        # Of a value's parts it is of interest where the value is kept.
        is_value = isinstance(each, msgspec.Struct | tuple)
        for name, part in vars(each).items() if kind is each else _attributes(each):
            is_own = not is_value and (not is_dataclass(kind) or isinstance(part, _CONTAINERS))
            yield f"{kind.__name__}.{name}" if is_own and not _is_frozen(kind) else store, part
    elif isinstance(each, FunctionType):
        cells = zip(each.__code__.co_freevars, each.__closure__ or (), strict=True)
        yield from ((f"{each.__qualname__}:{name}", cell) for name, cell in cells)
        yield from ((store, part) for part in (each.__defaults__, each.__kwdefaults__))
    elif package in _LOOKED_INTO and kind is not each:
        yield from ((store, part) for part in gc.get_referents(each))


def _is_frozen(kind: type) -> bool:
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _attributes(each: Any) -> Iterator[Named]:
    kind = type(each)
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = chain.from_iterable((some,) if isinstance(some, str) else some for some in slots)
    for name in {*getattr(each, "__dict__", ()), *names, *getattr(kind, "__struct_fields__", ())}:
        if hasattr(each, name):
            yield name, getattr(each, name)
    if isinstance(each, _CONTAINERS):
        yield from (("", part) for part in gc.get_referents(each))
