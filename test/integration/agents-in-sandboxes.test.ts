import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { checkAgainstLedger, loadScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readTaskFile } from '#floe/commands/yaml-file';
import { makeImage } from '../../verify/fixtures/image.ts';
import { itIf } from '../skip.ts';
import { startTestStack, type TestStack, workingBackends } from './stack.ts';

const EXAMPLES = join(import.meta.dirname, '..', '..', 'examples', 'agents');

/** The example of each agent: how many replies the simulated policy needs, and the calls that it makes. */
const AGENTS: readonly [string, number, Record<string, number>][] = [
  ['math', 3, { 'calls.ipython': 2, 'calls.think': 1 }],
  ['stem', 2, { 'calls.ipython': 1, 'calls.bash': 1 }],
  ['code', 5, { 'calls.str_replace_editor': 3, 'calls.bash': 1, 'calls.ipython': 1 }],
  ['swe', 5, { 'calls.str_replace_editor': 4, 'calls.bash': 2, 'calls.finish': 1, 'hints.failed_edit': 1 }],
  ['terminal', 3, { 'calls.bash': 2 }],
  [
    'memory',
    5,
    { 'calls.read_chunk': 1, 'calls.memory_write': 1, 'calls.memory_search': 1, 'calls.next_with_summary': 2 },
  ],
];

const backends = await workingBackends();

describe.each(backends)('the example of each agent, in a sandbox of %s,', (backend) => {
  let stack: TestStack;
  let dir: string;
  beforeAll(async () => {
    const files = AGENTS.map(([name]) => join(EXAMPLES, name, 'scenario.yaml'));
    dir = await mkdtemp(join(tmpdir(), 'floe-agents-'));
    makeImage(join(dir, 'image'), ['awk', 'bash', 'cat', 'chmod', 'find', 'head', 'sort']);
    stack = await startTestStack({
      scenarios: await loadScenarios(files),
      node: { default_backend: backend, upload_roots: [EXAMPLES] },
    });
  });
  afterAll(async () => {
    await stack.close();
    await rm(dir, { recursive: true, force: true });
  });

  async function resultOf(name: string): Promise<SessionResult> {
    const task = await readTaskFile(join(EXAMPLES, name, 'task.yaml'));
    // Harbor's scripts write to the root of the sandbox, so it needs a root file system of its own.
    const image = name === 'terminal' ? { image: join(dir, 'image'), workdir: '/app' } : {};
    const runtime = { ...task.runtime, ...image };
    const [result] = await stack.run({ ...task, runtime, num_samples: 1, max_attempts: 1 });
    if (result === undefined) throw new Error('the session has no result');
    return result;
  }

  for (const [name, turns, metrics] of AGENTS) {
    const needsIsolation = name === 'terminal' && backend === 'local' ? 'harbor grades isolated sandboxes only' : null;
    itIf(needsIsolation, `is solved by ${name} and graded, and every token is as sampled`, async () => {
      const result = await resultOf(name);
      expect(result).toMatchObject({
        outcome: 'completed',
        reward: 1,
        agent: { turns, episode: { status: 'finished', metrics: { turns, ...metrics } } },
      });
      // A summary that replaces the conversation begins a new trace.
      const traces = 1 + (metrics['calls.next_with_summary'] ?? 0);
      expect(result.trajectory?.traces).toHaveLength(traces);
      expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({
        sessions: 1,
        mismatches: [],
      });
    });
  }
});

describe('an agent that works in a sandbox', () => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({ node: { default_backend: 'none' } });
  });
  afterAll(() => stack.close());

  it.each(AGENTS.map(([name]) => name).filter((name) => name !== 'memory'))(
    'is refused without one: %s',
    async (agent) => {
      const task = { instruction: 'Do it.', agent: { harness: 'floe', settings: { agent } } };
      await expect(stack.client.submit({ ...task, runtime: { backend: 'none' } })).rejects.toMatchObject({
        code: 'schema_violation',
        message: expect.stringContaining('runtime.backend'),
      });
    },
  );
});
