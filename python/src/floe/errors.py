"""The error that every call of this package raises."""

from __future__ import annotations

from typing import Any, Mapping

#: Statuses below 500 of a server that is not floe with which a repeated call may succeed.
_TRANSIENT_STATUS = frozenset({408, 429})


class FloeError(Exception):
    """A call of floe failed. `code` is one of docs/errors.md; `details` names the field, file or object."""

    def __init__(
        self,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        retryable: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        #: Whether the same call can succeed later.
        self.retryable = retryable
        #: HTTP status of the reply; None when there was none.
        self.status = status
        #: Seconds after which the server wants the call to be repeated; None when it named no time.
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Trainers send exceptions between processes, which needs the keyword arguments as well.
        return _restore, (
            type(self),
            (self.code, self.message, self.details),
            (self.retryable, self.status, self.retry_after),
            {name: value for name, value in self.__dict__.items() if name not in _OWN_FIELDS},
        )


_OWN_FIELDS = frozenset({"code", "message", "details", "retryable", "status", "retry_after"})


def _restore(
    cls: type[FloeError],
    facts: tuple[str, str, dict[str, Any]],
    reply: tuple[bool, int | None, float | None],
    rest: dict[str, Any],
) -> FloeError:
    error = cls.__new__(cls)
    retryable, status, retry_after = reply
    FloeError.__init__(error, *facts, retryable=retryable, status=status, retry_after=retry_after)
    error.__dict__.update(rest)
    return error


def error_of_reply(status: int, body: Any, excerpt: str, retry_after: float | None) -> FloeError:
    """Returns the error that the server sent. For a reply of another server, such as an HTTP proxy, one that matches the status."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        details = error.get("details")
        return FloeError(
            error["code"],
            str(error.get("message", "")),
            details if isinstance(details, dict) else {},
            retryable=error.get("retryable") is True,
            status=status,
            retry_after=retry_after,
        )
    transient = status >= 500 or status in _TRANSIENT_STATUS
    code = "peer_unreachable" if transient else "not_found" if status == 404 else "bad_request"
    message = f"the server replied with status {status}: {excerpt}"
    # The parsed reply of a server that is not floe, for callers that know this server.
    details = {"status": status, "reply": body}
    return FloeError(code, message, details, retryable=transient, status=status, retry_after=retry_after)


def unreachable(message: str, *, sent: bool = True) -> FloeError:
    """The error of a call that got no reply. `sent`: whether the server may have received it."""
    return FloeError("peer_unreachable", message, {"sent": sent}, retryable=True)
