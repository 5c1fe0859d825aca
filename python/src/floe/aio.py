"""The asynchronous client: the calls of the synchronous one in threads of its own."""

from __future__ import annotations

import asyncio
import contextvars
import ssl
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, AsyncGenerator, Callable, Generator, Iterator, Literal, Mapping, Sequence, TypeVar, cast

from .api_types import (
    AdvantageMethod,
    AttemptView,
    Batch,
    BatchReply,
    BatchStreamRequest,
    BatchStreamView,
    EngineChange,
    EngineSpec,
    EnginesStatus,
    FormatName,
    PauseMode,
    PushReply,
    RolloutStatus,
    SessionResult,
    SessionView,
    SubmitReply,
    TaskRequest,
    TaskState,
    TaskStatus,
    TaskSummary,
    Trajectory,
)
from .batches import Version
from .client import Client
from .connection import Scope, current_scope

T = TypeVar("T")
_END: Any = object()


class AsyncClient:
    """
    The methods of Client as coroutines and asynchronous iterators. Each running call has a thread, up to `threads`; cancelling its
    coroutine ends the call.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 60.0,
        context: ssl.SSLContext | None = None,
        pause: Callable[[float], None] | None = None,
        threads: int = 256,
    ) -> None:
        self._client = Client(url, token, timeout=timeout, retry_seconds=retry_seconds, context=context, pause=pause)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="floe")
        self._is_closed = False

    async def close(self) -> None:
        """Ends the running calls with an error. Later calls fail."""
        self._client.close()
        self._is_closed = True
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(self, task: TaskRequest) -> SubmitReply:
        return await self._run(lambda: self._client.submit(task))

    async def task(self, task_id: str, *, wait: float = 0.0) -> TaskStatus:
        return await self._run(lambda: self._client.task(task_id, wait=wait))

    async def task_results(self, task_id: str) -> list[SessionResult]:
        return await self._run(lambda: self._client.task_results(task_id))

    async def tasks(self, *, status: TaskState | None = None, limit: int | None = None) -> list[TaskSummary]:
        return await self._run(lambda: self._client.tasks(status=status, limit=limit))

    async def cancel(self, task_id: str, *, register_if_missing: bool = False) -> TaskStatus:
        return await self._run(lambda: self._client.cancel(task_id, register_if_missing=register_if_missing))

    async def sessions(self, task_id: str) -> list[SessionView]:
        return await self._run(lambda: self._client.sessions(task_id))

    async def session(self, session_id: str) -> SessionView:
        return await self._run(lambda: self._client.session(session_id))

    async def cancel_session(self, session_id: str) -> SessionView:
        return await self._run(lambda: self._client.cancel_session(session_id))

    async def attempts(self, session_id: str) -> list[AttemptView]:
        return await self._run(lambda: self._client.attempts(session_id))

    async def trajectory(self, session_id: str, *, attempt: int | None = None) -> Trajectory:
        return await self._run(lambda: self._client.trajectory(session_id, attempt=attempt))

    async def completions(self, session_id: str, *, attempt: int | None = None) -> bytes:
        return await self._run(lambda: self._client.completions(session_id, attempt=attempt))

    async def artifacts(self, session_id: str, *, attempt: int | None = None) -> bytes:
        return await self._run(lambda: self._client.artifacts(session_id, attempt=attempt))

    async def status(self) -> RolloutStatus:
        return await self._run(self._client.status)

    def results(
        self,
        *,
        after: int | None = None,
        consumer: str | None = None,
        trainer: str | None = None,
        peek: bool = False,
        follow: bool = True,
        page_size: int = 100,
    ) -> AsyncGenerator[SessionResult, None]:
        """See Client.results."""
        return self._iterate(
            self._client.results(
                after=after, consumer=consumer, trainer=trainer, peek=peek, follow=follow, page_size=page_size
            )
        )

    async def engines(self) -> EnginesStatus:
        return await self._run(self._client.engines)

    async def add_engine(self, spec: EngineSpec, *, replace: bool = False, wait: float = 15.0) -> EngineChange:
        return await self._run(lambda: self._client.add_engine(spec, replace=replace, wait=wait))

    async def remove_engine(self, engine_id: str, *, wait: float = 15.0) -> EngineChange:
        return await self._run(lambda: self._client.remove_engine(engine_id, wait=wait))

    async def clear_engines(self, *, wait: float = 15.0) -> EngineChange:
        return await self._run(lambda: self._client.clear_engines(wait=wait))

    async def pause_engines(
        self,
        mode: PauseMode = "keep",
        *,
        while_paused: Literal["hold", "reject"] = "hold",
        wait: float = 15.0,
    ) -> EngineChange:
        return await self._run(lambda: self._client.pause_engines(mode, while_paused=while_paused, wait=wait))

    async def resume_engines(self, *, wait: float = 15.0) -> EngineChange:
        return await self._run(lambda: self._client.resume_engines(wait=wait))

    async def set_policy_version(self, version: str, *, wait: float = 15.0) -> EngineChange:
        return await self._run(lambda: self._client.set_policy_version(version, wait=wait))

    async def create_batches(self, stream: BatchStreamRequest) -> BatchStreamView:
        return await self._run(lambda: self._client.create_batches(stream))

    async def batch_streams(self) -> list[BatchStreamView]:
        return await self._run(self._client.batch_streams)

    async def batch_stream(self, batch_id: str) -> BatchStreamView:
        return await self._run(lambda: self._client.batch_stream(batch_id))

    async def delete_batches(self, batch_id: str) -> BatchStreamView:
        return await self._run(lambda: self._client.delete_batches(batch_id))

    async def push_rows(
        self, batch_id: str, rows: Sequence[Mapping[str, Any]], *, last: bool = False, after: int | None = None
    ) -> PushReply:
        return await self._run(lambda: self._client.push_rows(batch_id, rows, last=last, after=after))

    async def rewind_batches(self, batch_id: str, *, after: int, policy_version: Version) -> BatchStreamView:
        return await self._run(
            lambda: self._client.rewind_batches(batch_id, after=after, policy_version=policy_version)
        )

    async def next_batch(self, batch_id: str, **request: Any) -> BatchReply:
        """See Client.next_batch, whose keyword arguments it takes."""
        return await self._run(lambda: self._client.next_batch(batch_id, **request))

    async def next_batch_arrow(self, batch_id: str, **request: Any) -> tuple[BatchReply, bytes]:
        """See Client.next_batch_arrow, whose keyword arguments it takes."""
        return await self._run(lambda: self._client.next_batch_arrow(batch_id, **request))

    def batches(
        self,
        batch_id: str,
        *,
        policy_version: Callable[[], Version] | None = None,
        after: int | None = None,
        format: FormatName | None = None,
        advantages: AdvantageMethod | None = None,
        **request: Any,
    ) -> AsyncGenerator[Batch, None]:
        """See Client.batches, whose keyword arguments it takes."""
        return self._iterate(
            self._client.batches(
                batch_id, policy_version=policy_version, after=after, format=format, advantages=advantages, **request
            )
        )

    def rollouts(
        self,
        rows: Sequence[Mapping[str, Any]],
        task: Mapping[str, Any],
        *,
        format: FormatName | None = None,
        advantages: AdvantageMethod | None = None,
        **request: Any,
    ) -> AsyncGenerator[Batch, None]:
        """See Client.rollouts, whose keyword arguments it takes."""
        return self._iterate(self._client.rollouts(rows, task, format=format, advantages=advantages, **request))

    async def _run(self, call: Callable[[], T], scope: Scope | None = None) -> T:
        """Makes a call in a thread. When this coroutine is cancelled, the call is aborted."""
        scope = scope or Scope()
        context = contextvars.copy_context()
        context.run(current_scope.set, scope)
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            scope.abort()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # Read, so that asyncio does not report it as unhandled.
            raise

    async def _iterate(self, items: Iterator[T]) -> AsyncGenerator[T, None]:
        scope = Scope()
        try:
            while True:
                item = await self._run(lambda: next(items, cast(T, _END)), scope)
                if item is _END:
                    return
                yield item
        finally:
            close = cast("Generator[T, None, None]", items).close
            if self._is_closed:
                close()  # Its calls fail at once, so it needs no thread.
            else:
                await self._run(close)
