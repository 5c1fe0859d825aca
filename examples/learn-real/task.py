"""The task that the policy learns: find out which file has the right word, and answer with it.

    python task.py FOLDER COUNT      writes rows.jsonl, task.json, and scenario.json for the simulated engine

Each sandbox has four files with a word each. The agent (agent.py) offers one tool, `read_file`. The word of one file is the right answer, in all
rows of the same file, but no instruction says so: only rewards do. They are 1 for the right word and 0 for any other answer.
"""

import json
import random
import sys
from math import log
from pathlib import Path
from typing import Any

FILES = ["red", "blue", "green", "black"]
RIGHT_FILE = "green"
WORDS = ["apple", "bread", "cedar", "delta", "eagle", "flint", "grape", "honey"]

# How often the simulated policy reads the right file, and answers with the word that it has read.
SIMULATED_SKILL = (0.35, 0.97)

# Writes a file for each line of a row's `files`: its name, and its content.
WRITE_FILES = """while read name content; do printf %s "$content" > "$name.txt"; done <<'END'
{{row.files}}
END"""

TASK: dict[str, Any] = {
    "instruction": "One of red.txt, blue.txt, green.txt and black.txt has the right word. Read a file and answer with its word.",
    "agent": {"harness": "shell", "custom_shell": "python3 .agent.py", "max_turns": 4},
    "runtime": {
        "prepare": [
            {"type": "write_file", "target": ".agent.py", "content": (Path(__file__).parent / "agent.py").read_text()},
            {"type": "exec", "command": WRITE_FILES},
        ],
        "memory_mb": 256,
        "storage_mb": 64,
    },
    "sampling": {"max_tokens": 48},
    "evaluator": {"strategy": "answer", "config": {"kind": "exact", "expected": "{{row.answer}}"}},
    "timeout_seconds": 300,
}


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Draws rows: the files as lines of name and content, and the right answer."""
    draw = random.Random(seed)
    drawn = []
    for _ in range(count):
        words = dict(zip(FILES, draw.sample(WORDS, len(FILES))))
        files = "\n".join(f"{name} {word}" for name, word in words.items())
        drawn.append({"files": files, "answer": words[RIGHT_FILE]})
    return drawn


def stream(name: str, samples: int, groups: int) -> dict[str, Any]:
    """The body of `POST /rollout/batches`: batches of `groups` rows with `samples` sessions each, whose rewards differ."""
    return {
        "batch_id": name,
        "source": {"kind": "rows", "rows": rows(256, seed=1)},
        "task": {**TASK, "trainer": name, "num_samples": samples},
        "batch_size": groups,
        "max_staleness": 2,
        "accept": {"min_usable": samples, "zero_variance": "drop"},
        "order": {"kind": "shuffled", "seed": 0},
    }


def evaluation(name: str, count: int) -> dict[str, Any]:
    """A stream that samples each of `count` rows once. No row is one of those that are trained."""
    return {
        "batch_id": name,
        "purpose": "evaluate",
        "source": {"kind": "rows", "rows": rows(count, seed=2)},
        "task": {**TASK, "trainer": name, "num_samples": 1},
        "batch_size": count,
    }


def scenario() -> dict[str, Any]:
    """A simulated policy that can call the tool, and seldom reads the right file."""
    finds, answers = SIMULATED_SKILL
    rules = [rule({"assistant_turns": 0}, "file", finds, RIGHT_FILE, FILES, call)]
    for word in WORDS:
        rules.append(rule({"last_tool_result": {"contains": word}}, f"word-{word}", answers, word, WORDS, text))
    return {"scenarios": [{"name": "find-the-word", "rules": rules}]}


def rule(when: dict[str, Any], name: str, skill: float, right: str, options: list[str], write: Any) -> dict[str, Any]:
    """A rule whose reply is the right option with probability `skill`, and each other option with an equal share of the rest."""
    logit = log(skill / (1 - skill) * (len(options) - 1))
    choice = [{"logit": logit if option == right else 0.0, "reply": [write(option)]} for option in options]
    return {"when": when, "reply": [{"choice": {"id": name, "options": choice}}]}


def call(file: str) -> dict[str, Any]:
    return {"call": {"tool": "read_file", "arguments": {"path": f"{file}.txt"}}}


def text(word: str) -> dict[str, Any]:
    return {"text": word}


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(count, seed=0)))
    (folder / "task.json").write_text(json.dumps(TASK, indent=1))
    (folder / "scenario.json").write_text(json.dumps(scenario(), indent=1))
