"""Serves a resources server of NeMo Gym, named by its module and class, on a free port."""

from __future__ import annotations

import sys
from importlib import import_module
from unittest.mock import MagicMock

from nemo_gym.server_utils import ServerClient
from serving import serve


def main(module: str, name: str) -> None:
    server_class = getattr(import_module(f"resources_servers.{module}.app"), name)
    config_class = server_class.model_fields["config"].annotation
    config = config_class(host="127.0.0.1", port=0, entrypoint="app.py", name=module, domain="other")
    # The servers that are served here call no other server.
    server = server_class(config=config, server_client=MagicMock(spec=ServerClient))
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    serve(app)


main(sys.argv[1], sys.argv[2])
