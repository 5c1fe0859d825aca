"""Serves the environment of OpenEnv's own template, which echoes messages, on a free port."""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

from serving import serve


def fill(folder: Path) -> None:
    """Copies the template, with the names in the place of its placeholders."""
    source = Path(str(files("openenv.cli") / "templates" / "openenv_env"))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    names = {"__ENV_CLASS_NAME__": "Echo", "__ENV_TITLE_NAME__": "Echo", "__ENV_NAME__": "echo", "__ENV_IMAGE_NAME__": "echo"}
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for placeholder, name in names.items():
            text = text.replace(placeholder, name)
        path.with_name(path.name.replace("__ENV_NAME__", "echo")).write_text(text)


def main(folder: Path) -> None:
    fill(folder)
    sys.path.insert(0, str(folder))
    from models import EchoAction, EchoObservation  # type: ignore[import-not-found]
    from openenv.core.env_server.http_server import create_app
    from server.echo_environment import EchoEnvironment  # type: ignore[import-not-found]

    app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=2)
    serve(app)


main(Path(sys.argv[1]))
