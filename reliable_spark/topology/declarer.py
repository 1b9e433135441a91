"""How a component says what it emits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reliable_spark.core.graph import DEFAULT_STREAM, Stream, check_name
from reliable_spark.errors import TopologyError


class OutputFieldsDeclarer:
    """Collects the streams of one component. Source: Storm's `topology/OutputFieldsGetter`.

    Attributes:
        input_fields: the fields of the first stream the component subscribes to, for one that passes them on.
    """

    def __init__(self, component: str, input_fields: Sequence[str] = ()) -> None:
        self.input_fields = tuple(input_fields)
        self.streams: dict[str, Stream] = {}
        self._component = component

    def declare(self, fields: Sequence[str], direct: bool = False) -> None:
        """Declare the fields of the stream "default"; see `declare_stream`."""
        self.declare_stream(DEFAULT_STREAM, fields, direct)

    def declare_stream(self, stream: str, fields: Sequence[str], direct: bool = False) -> None:
        """Declare a stream.

        Args:
            stream: its id.
            fields: the names of its values.
            direct: True when the emitter names the receiving task, by `emit_direct`.

        Raises:
            TopologyError: the id is reserved or taken, or a field occurs twice.
        """
        check_name(stream, "stream", self.streams)
        names = as_fields(fields)
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise TopologyError(f"component {self._component!r} declares field {repeated[0]!r} twice")
        self.streams[stream] = Stream(names, direct)


def as_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Field names; one bare name is one field, not its letters.

    Raises:
        TopologyError: they are no list of names, or a name is no text.
    """
    if not isinstance(fields, Iterable):
        raise TopologyError(f"fields are a list of names, not {fields!r}")
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in names:
        if not isinstance(name, str):
            raise TopologyError(f"a field is named by a text, not {name!r}")
    return names
