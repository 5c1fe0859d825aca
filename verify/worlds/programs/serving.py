"""Serves an application on a free port, whose address is printed as the first line."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn


def serve(app: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
