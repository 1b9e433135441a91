"""The messages of a topology's spouts, each with the one answer it ends with.

A tree is one attempt at a message. Storm's spouts are told of every failed attempt and may emit the message again under
the same id, so a failed message waits for that; what still waits when the topology ends is dead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MessageKey = tuple[str, str | None, str]
"""The spout, the type of the message id, and the message id as text."""

Ending = Literal["failed", "lost"]
"""How an attempt ends that was not acked: it failed or timed out, or its spout's task died."""


@dataclass
class Message:
    """A message without its final answer.

    Attributes:
        spout: who emitted it.
        message_id: its id as text.
        stream: where it was emitted last.
        values: what was emitted last.
        first_seen_s: when it was emitted first.
        emitted_at_s: when it was emitted last.
        id_type: the name of the id's type, since 1 and "1" are two ids; None in a message of an earlier run, of whose
            id the text is all that was kept.
        attempts: how often it was emitted.
        ending: how its last attempt ended; None while that goes on.
    """

    spout: str
    message_id: str
    stream: str
    values: Sequence[Any]
    first_seen_s: float
    emitted_at_s: float = 0.0
    attempts: int = 1
    ending: Ending | None = None
    id_type: str | None = None

    @property
    def key(self) -> MessageKey:
        """What two emits have in common that are the same message."""
        return self.spout, self.id_type, self.message_id


class Messages:
    """Invariant: `anchored == acked + dead + pending` after every call.

    Two emits of one id are two messages, unless the id has failed before: then the second is the first one again. Which
    of two that are open an answer is for says the tree's root id.

    Attributes:
        counts: how many were anchored, acked, failed, lost, replayed and dead since somebody took the counts.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._open: dict[int, Message] = {}
        self._waiting: defaultdict[MessageKey, list[Message]] = defaultdict(list)

    def remember(self, message: Message) -> None:
        """A message of an earlier run: it was anchored then, and waits to be emitted again."""
        message.ending = message.ending or "lost"
        self._waiting[message.key].append(message)

    def emitted(self, root: int, message: Message) -> None:
        """A spout has emitted a message, for the first time or again, as the root of a tree."""
        before = self._taken(message.key) or self._taken((message.spout, None, message.message_id))
        if before is None:
            self.counts["anchored"] += 1
        else:
            self.counts["replayed"] += 1
            message.first_seen_s, message.attempts = before.first_seen_s, before.attempts + 1
        self._open[root] = message

    def acked(self, root: int) -> None:
        """An attempt is done, and its message with it."""
        if self._open.pop(root, None) is not None:
            self.counts["acked"] += 1

    def ended(self, root: int, ending: Ending) -> None:
        """An attempt was not acked; its message waits to be emitted again."""
        message = self._open.pop(root, None)
        if message is not None:
            message.ending = ending
            self.counts[ending] += 1
            self._waiting[message.key].append(message)

    def pending(self) -> Iterator[Message]:
        """All without their final answer."""
        yield from self._open.values()
        for some in self._waiting.values():
            yield from some

    def bury(self) -> list[Message]:
        """The topology has ended: what failed and was not emitted again is dead."""
        waiting = [each for some in self._waiting.values() for each in some]
        dead = [each for each in waiting if each.ending == "failed"]
        self._waiting.clear()
        for each in waiting:
            if each.ending != "failed":
                self._waiting[each.key].append(each)
        self.counts["dead"] += len(dead)
        return dead

    def take_counts(self) -> Counter[str]:
        """The counts since the last call."""
        taken, self.counts = self.counts, Counter()
        return taken

    def _taken(self, key: MessageKey) -> Message | None:
        """The message of a key that waits longest, taken out."""
        some = self._waiting.get(key)
        if not some:
            return None
        message = some.pop(0)
        if not some:
            del self._waiting[key]
        return message


def text_of(value: Any) -> str:
    """Any value as a text that can be stored: itself or as Python writes it, else what type it has."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # it is the value's own code, and a number may have too many digits
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()
