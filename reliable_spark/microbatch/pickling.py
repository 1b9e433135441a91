"""How things travel between the driver and its workers: by cloudpickle, and without what each side has anyway."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import pyspark.cloudpickle

from reliable_spark.process.world import World

_PROTOCOL = 5
_cloudpickle: Any = pyspark.cloudpickle  # it has no types


def packed(value: Any) -> bytes:
    """A value as bytes; what cannot be pickled raises TypeError, AttributeError or PicklingError."""
    data: bytes = _cloudpickle.dumps(value, protocol=_PROTOCOL)
    return data


def unpacked(data: bytes) -> Any:
    """The value again."""
    return pickle.loads(data)


def kept(value: Any, world: World) -> bytes:
    """A task between two steps: all but the world it lives in, which is put in its place again."""
    buffer = io.BytesIO()
    pickler: Any = _Pickler(buffer, {id(each): name for name, each in _shared(world).items()})
    pickler.dump(value)
    return buffer.getvalue()


def woken(data: bytes, world: World) -> Any:
    """What was kept, in another world."""
    return _Unpickler(io.BytesIO(data), _shared(world)).load()


def _shared(world: World) -> dict[str, Any]:
    return {"world": world, "clock": world.clock, "graph": world.graph, "tasks": world.tasks}


class _Pickler(pyspark.cloudpickle.CloudPickler):
    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file, protocol=_PROTOCOL)  # type: ignore[no-untyped-call]
        self._names = names

    def persistent_id(self, value: Any) -> str | None:
        return self._names.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, name: str) -> Any:
        return self._shared[name]


def send_hidden_modules_by_value() -> None:
    """Let the code of modules that a worker could not import, such as a test's, travel with the objects that use it."""
    installed = (sys.prefix, sys.base_prefix)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".py") and not file.startswith(installed) and _may_be_hidden(name, module):
            _cloudpickle.register_pickle_by_value(module)


def _may_be_hidden(name: str, module: ModuleType) -> bool:
    if name == "__main__" or name != module.__name__ or name.partition(".")[0] == __name__.partition(".")[0]:
        return False
    try:
        return _origin(name) != module.__file__
    except (ImportError, KeyError):  # a parent that is no package that can be found
        return True


def _origin(name: str) -> str | None:
    """The file that a fresh interpreter with this one's paths would import; None when it finds none."""
    parts, path, origin = name.split("."), None, None
    for number in range(len(parts)):
        found = PathFinder.find_spec(".".join(parts[: number + 1]), path)
        if found is None:
            return None
        path, origin = list(found.submodule_search_locations or ()), found.origin
    return origin
