import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { findTool } from '../../../verify/services/tools.ts';
import { itIf, toolMissing } from '../../skip.ts';

const SOURCES = join(repositoryRoot(), 'python', 'src');

/** Requests and replies as a trainer uses them. */
const GOOD = `
from floe import BatchStreamRequest, Client, EngineSpec, SessionResult, TaskRequest

task: TaskRequest = {
    "instruction": "Write a greeting to hello.txt.",
    "num_samples": 8,
    "agent": {"harness": "pi", "mcp_servers": [{"name": "files", "transport": "stdio", "command": "serve"}]},
    "runtime": {"network": "allowlist", "allowed_hosts": ["pypi.org"], "prepare": [{"type": "exec", "command": "true"}]},
    "outcome_policy": {"agent_timeout": {"use": "mask"}},
    "evaluator": {"strategy": "script", "config": {"command": "true"}},
}
stream: BatchStreamRequest = {"source": {"kind": "file", "path": "rows.jsonl"}, "task": dict(task)}
engine: EngineSpec = {"base_url": "http://127.0.0.1:8000", "kind": "sglang"}


def trained(result: SessionResult) -> int:
    calls = result["calls"]
    return result["trainable_tokens"] if calls is None else len(calls["engines"])


with Client() as client:
    client.add_engine(engine)
    client.create_batches(stream)
    submitted = client.submit({**task, "trainer": "types"})
    client.submit({"instruction": "Say hello.", "agent": {"harness": "pi"}})
    counts = [trained(result) for result in client.task_results(submitted["task_id"])]
    running: int = client.status()["tasks"]["running"]
    rewards = [one["mean_reward"] for one in client.tasks(status="completed")]
    for batch in client.batches("types"):
        number: int = batch["batch"]
        samples = [result["outcome"] for group in batch["groups"] for result in group.get("results", [])]
`;

/** Statements that are each wrong in one place: field names and values of requests, and field names of replies. */
const WRONG = {
  'a field of a task': 'client.submit({"instruction": "x", "agent": {"harness": "pi"}, "num_sample": 8})',
  'a field of a part of a task': 'client.submit({"instruction": "x", "agent": {"harness": "pi", "max_turn": 3}})',
  'a value of a task':
    'client.submit({"instruction": "x", "agent": {"harness": "pi"}, "runtime": {"network": "open"}})',
  'a missing field of a task': 'client.submit({"instruction": "x"})',
  'a field of a batch stream': 'client.create_batches({"source": {"kind": "file", "file": "rows.jsonl"}, "task": {}})',
  'a field of an engine': 'client.add_engine({"base_url": "http://127.0.0.1:8000", "kinds": "vllm"})',
  'a field of a summary': 'client.task("t")["results"][0]["trainable_token"]',
  'a field of the status': 'client.status()["task"]',
};
const LEADING = ['from floe import Client', '', 'client = Client()', ''];

describe('the types of the Python client', () => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-python-types-'));
    writeFileSync(join(dir, 'good.py'), GOOD);
    writeFileSync(join(dir, 'wrong.py'), [...LEADING, ...Object.values(WRONG), ''].join('\n'));
  });
  afterAll(() => rmSync(dir, { recursive: true, force: true }));

  const checkers = {
    mypy: ['--strict', '--python-version', '3.10', '--cache-dir', 'cache'],
    pyright: ['--pythonversion', '3.10'],
  };

  for (const [name, options] of Object.entries(checkers)) {
    const check = (file: string): string => {
      // mypy finds the package by MYPYPATH, pyright by the extra path of its configuration.
      writeFileSync(join(dir, 'pyrightconfig.json'), JSON.stringify({ extraPaths: [SOURCES], include: [file] }));
      const args = name === 'pyright' ? [...options, '--project', dir] : [...options, file];
      const env = { ...process.env, MYPYPATH: SOURCES };
      const { stdout, stderr } = spawnSync(findTool(name) ?? name, args, { cwd: dir, env, encoding: 'utf8' });
      return `${stdout}${stderr}`;
    };

    itIf(toolMissing(name), `let ${name} accept correct requests and uses of replies`, () => {
      expect(check('good.py')).toMatch(name === 'mypy' ? /^Success: no issues found/ : /^0 errors/m);
    });

    itIf(toolMissing(name), `let ${name} report each wrong field of requests and replies`, () => {
      const output = check('wrong.py');
      const lines = [...output.matchAll(/wrong\.py:(\d+).*\berror\b/g)].map(([, line]) => Number(line));
      const reported = Object.keys(WRONG).filter((_, index) => lines.includes(LEADING.length + index + 1));
      expect(reported, output).toEqual(Object.keys(WRONG));
    });
  }
});
