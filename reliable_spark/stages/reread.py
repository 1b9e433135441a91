"""Read a micro-batch of a stream again, long after it was run: the rows of trees that failed in a later stage."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from reliable_spark.errors import OperatingError
from reliable_spark.sinks.files import located


@dataclass(frozen=True)
class MicroBatch:
    """Which micro-batch of a streaming query: its number, and the offsets that it ends and begins with."""

    number: int
    end: str
    begin: str | None


class Reader:
    """Reads micro-batches of one stream again, whatever its source is: Spark itself runs them from their offsets.

    Spark runs the last batch of a checkpoint again when that is not committed. So a checkpoint of one such batch is
    made up, and the stream is started on it for that batch alone.

    Args:
        stream: the source's rows.
        checkpoint: the checkpoint of the query that read them first.
        place: a directory for the made-up checkpoints.
    """

    def __init__(self, stream: DataFrame, checkpoint: str, place: str) -> None:
        self._stream, self._checkpoint, self._place = stream, checkpoint, place
        self._spark: SparkSession = stream.sparkSession

    def read(self, batch: MicroBatch, use: Callable[[DataFrame], None]) -> None:
        """Call a function with the rows of a micro-batch, once.

        Raises:
            OperatingError: the source does not give the batch any more.

        Cost: the start of a streaming query, about a second, and a read of the batch.
        """
        place = f"{self._place}/{uuid.uuid4().hex}"
        errors: list[BaseException] = []
        runs: list[int] = []

        def once(frame: DataFrame, number: int) -> None:
            if number != batch.number or runs:
                return
            runs.append(number)
            try:
                use(frame)
            except BaseException as error:
                errors.append(error)

        try:
            self._make(place, batch)
            writer = self._stream.writeStream.foreachBatch(once).option("checkpointLocation", place)
            writer.trigger(once=True).start().awaitTermination()
        except Exception as error:
            raise OperatingError(
                f"micro-batch {batch.number} of the source could not be read again, to replay rows of it that failed "
                f"in a later stage: {str(error).splitlines()[0]}"
            ) from error
        finally:
            files, path = located(self._spark, place)
            files.delete(path, True)
        if errors:
            raise errors[0]
        if not runs:
            raise OperatingError(f"micro-batch {batch.number} of the source was not given again")

    def _make(self, place: str, batch: MicroBatch) -> None:
        self._write(f"{place}/metadata", json.dumps({"id": str(uuid.uuid4())}))
        self._write(f"{place}/offsets/{batch.number}", batch.end)
        if batch.begin is not None:
            self._write(f"{place}/offsets/{batch.number - 1}", batch.begin)
            self._write(f"{place}/commits/{batch.number - 1}", 'v1\n{"nextBatchWatermarkMs":0}')
        files, sources = located(self._spark, f"{self._checkpoint}/sources")
        if files.exists(sources):
            java: Any = self._spark._jvm
            there, copy = located(self._spark, f"{place}/sources")
            java.org.apache.hadoop.fs.FileUtil.copy(files, sources, there, copy, False, files.getConf())

    def _write(self, path: str, text: str) -> None:
        files, place = located(self._spark, path)
        stream = files.create(place, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
