"""Calls of batch streams, which sample the rows of a data set and hand out batches of informative groups."""

from __future__ import annotations

import json
import uuid
from typing import Any, Callable, Iterator, List, Mapping, Sequence, Union, cast
from urllib.parse import quote

from .api_types import (
    AdvantageMethod,
    Batch,
    BatchReply,
    BatchStreamRequest,
    BatchStreamView,
    ConstrainedUse,
    FormatName,
    PushReply,
)
from .connection import Connection, Query, Scope, current_scope, parse_json
from .errors import FloeError

#: A policy version: a step, or a text that ends with one, such as `v7`.
Version = Union[str, int]
#: How long the server holds a request for a batch while there are not enough groups, in seconds.
_BATCH_WAIT = 30.0

#: Largest number of rows of one request, and largest batch size, that the server accepts.
_MAX_ROWS = 10_000
_MAX_BATCH_SIZE = 100_000


class BatchCalls:
    """The part of the client that reads batch streams."""

    _connection: Connection

    def create_batches(self, stream: BatchStreamRequest) -> BatchStreamView:
        """
        Creates a stream. The same `stream` twice is one stream, so that a restarted trainer continues with it; another one with the same
        `batch_id` is a `conflict`. One without `batch_id` gets an id.
        """
        body = stream if stream.get("batch_id") is not None else {**stream, "batch_id": f"client-{uuid.uuid4()}"}
        return cast(BatchStreamView, self._connection.json("POST", "/rollout/batches", body=body))

    def batch_streams(self) -> List[BatchStreamView]:
        return cast("List[BatchStreamView]", self._connection.json("GET", "/rollout/batches")["streams"])

    def batch_stream(self, batch_id: str) -> BatchStreamView:
        """Returns the state, counts and problems of a stream."""
        return cast(BatchStreamView, self._connection.json("GET", _path(batch_id)))

    def delete_batches(self, batch_id: str) -> BatchStreamView:
        """Ends a stream. Its running groups are cancelled."""
        return cast(BatchStreamView, self._connection.json("DELETE", _path(batch_id)))

    def push_rows(
        self, batch_id: str, rows: Sequence[Mapping[str, Any]], *, last: bool = False, after: int | None = None
    ) -> PushReply:
        """
        Adds rows to a stream with an open source. `last` closes the source. `after`: number of rows that the stream has before these,
        with which a repeated call adds none twice; default: as many as it has now.
        """
        if after is None:
            after = self.batch_stream(batch_id)["row_count"] or 0
        body = {"rows": [dict(row) for row in rows], "last": last, "after": after}
        return cast(PushReply, self._connection.json("POST", f"{_path(batch_id)}/rows", body=body))

    def rewind_batches(self, batch_id: str, *, after: int, policy_version: Version) -> BatchStreamView:
        """Takes back the batches after number `after`, when a trainer has restored the checkpoint of that batch."""
        body = {"after": after, "policy_version": str(policy_version)}
        return cast(BatchStreamView, self._connection.json("POST", f"{_path(batch_id)}/rewind", body=body))

    def next_batch(
        self,
        batch_id: str,
        *,
        after: int | None = None,
        size: int | None = None,
        policy_version: Version | None = None,
        wait: float = _BATCH_WAIT,
        format: FormatName | None = None,
        advantages: AdvantageMethod | None = None,
        per_session: bool = False,
        per_turn: bool = False,
        constrained: ConstrainedUse | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> BatchReply:
        """
        Requests the batch after number `after`, which acknowledges the batches up to it; the same `after` returns the same batch.
        `batch` of the reply is None when there were not enough groups within `wait` seconds. With `format`, the batch has the `records`
        of that trainer format, and its groups have no `results`.
        """
        query = _next_query(
            after, size, policy_version, wait, format, advantages, per_session, per_turn, constrained, options
        )
        return cast(BatchReply, self._connection.json("GET", f"{_path(batch_id)}/next", query=query, wait=wait))

    def next_batch_arrow(
        self,
        batch_id: str,
        *,
        format: FormatName,
        after: int | None = None,
        size: int | None = None,
        policy_version: Version | None = None,
        wait: float = _BATCH_WAIT,
        advantages: AdvantageMethod | None = None,
        per_session: bool = False,
        per_turn: bool = False,
        constrained: ConstrainedUse | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[BatchReply, bytes]:
        """Like next_batch, with the records as an Arrow IPC stream, which `pyarrow.ipc.open_stream` reads."""
        query = _next_query(
            after, size, policy_version, wait, format, advantages, per_session, per_turn, constrained, options
        )
        path = f"{_path(batch_id)}/next"
        headers, data = self._connection.fetch(
            "GET", path, query={**query, "encoding": "arrow"}, wait=wait, accept="application/vnd.apache.arrow.stream"
        )
        described = headers.get("x-floe-batch")
        if described is None:  # There is no batch yet, and so no stream of records.
            return cast(BatchReply, parse_json(data, f"GET {path}")), b""
        return cast(BatchReply, parse_json(described.encode(), f"GET {path}")), data

    def batches(
        self,
        batch_id: str,
        *,
        policy_version: Callable[[], Version] | None = None,
        after: int | None = None,
        size: int | None = None,
        wait: float = _BATCH_WAIT,
        format: FormatName | None = None,
        advantages: AdvantageMethod | None = None,
        per_session: bool = False,
        per_turn: bool = False,
        constrained: ConstrainedUse | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[Batch]:
        """
        Yields the batches of a stream until its data is used up. Requesting the next one acknowledges those before it. `policy_version` is
        called before each request. `after`: number of the last batch that was handled; default: the last one that was handed out.
        """
        if after is None:
            # With a number, a reply that is lost on its way is requested once more, instead of the batch after it.
            after = self.batch_stream(batch_id)["batch"]
        while True:
            reply = self.next_batch(
                batch_id,
                after=after,
                size=size,
                policy_version=None if policy_version is None else policy_version(),
                wait=wait,
                format=format,
                advantages=advantages,
                per_session=per_session,
                per_turn=per_turn,
                constrained=constrained,
                options=options,
            )
            if reply["batch"] is not None:
                yield cast(Batch, reply)
                after = reply["batch"]
            elif reply["done"]:
                return

    def rollouts(
        self,
        rows: Sequence[Mapping[str, Any]],
        task: Mapping[str, Any],
        *,
        policy_version: Version | None = None,
        format: FormatName | None = None,
        advantages: AdvantageMethod | None = None,
        per_session: bool = False,
        per_turn: bool = False,
        constrained: ConstrainedUse | None = None,
        options: Mapping[str, Any] | None = None,
        stream: Mapping[str, Any] | None = None,
    ) -> Iterator[Batch]:
        """
        Samples each row once with the template `task` and yields one group at a time, as a batch, in the order in which they are done.
        A group without a usable sample has no records. For trainers that choose the rows themselves: it is a stream of its own, which
        ends with the iterator. `stream` overrides its fields.
        """
        request: BatchStreamRequest = {
            "source": {"kind": "rows", "rows": [dict(row) for row in rows[:_MAX_ROWS]], "open": len(rows) > _MAX_ROWS},
            "task": dict(task),
            # All rows are sampled at once, and their groups are requested one by one.
            "batch_size": min(max(1, len(rows)), _MAX_BATCH_SIZE),
            "order": {"kind": "sequential", "epochs": 1},
            # Accepts every group, also one without a usable sample: the trainer chose the rows, and filters the groups itself.
            "accept": {"min_usable": 0, "zero_variance": "keep"},
        }
        created = self.create_batches(cast(BatchStreamRequest, {**request, **(stream or {})}))
        batch_id = str(created["batch_id"])
        try:
            # Further rows are sent in parts. A `source` of the caller has its own rows.
            for start in [] if "source" in (stream or {}) else range(_MAX_ROWS, len(rows), _MAX_ROWS):
                end = start + _MAX_ROWS
                self.push_rows(batch_id, rows[start:end], after=start, last=end >= len(rows))
            yield from self.batches(
                batch_id,
                after=0,
                size=1,
                policy_version=None if policy_version is None else lambda: policy_version,
                format=format,
                advantages=advantages,
                per_session=per_session,
                per_turn=per_turn,
                constrained=constrained,
                options=options,
            )
        finally:
            # In a scope of its own, because the stream must also end when the caller's one was aborted.
            outer = current_scope.set(Scope())
            try:
                self.delete_batches(batch_id)
            except FloeError as error:
                # The groups have been handed out, or an earlier error is on its way: a stream that stays must hide neither.
                if error.code not in ("not_found", "peer_unreachable", "cancelled"):
                    raise
            finally:
                current_scope.reset(outer)


def _path(batch_id: str) -> str:
    return f"/rollout/batches/{quote(batch_id, safe='')}"


def _next_query(
    after: int | None,
    size: int | None,
    policy_version: Version | None,
    wait: float,
    format: FormatName | None,
    advantages: AdvantageMethod | None,
    per_session: bool,
    per_turn: bool,
    constrained: ConstrainedUse | None,
    options: Mapping[str, Any] | None,
) -> Query:
    return {
        "after": after,
        "size": size,
        "policy_version": policy_version,
        "wait": wait,
        "format": format,
        "advantages": advantages,
        "per_session": per_session or None,
        "per_turn": per_turn or None,
        "constrained": constrained,
        "options": json.dumps(options) if options else None,
    }
