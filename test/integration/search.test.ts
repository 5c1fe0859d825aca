import { mkdtempSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, loadScenarios, parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { built } from '../../packages/search/test/search/index.ts';
import { startTestStack, type TestStack } from './stack.ts';

const RING = 'int size;\nvoid ring_push(ring *r, int value) {\n  r->values[r->next++] = value;\n}\n';

const codeScenarios = parseScenarios(
  {
    scenarios: [
      {
        name: 'code',
        match: { contains: 'Where is the ring' },
        rules: [
          {
            when: { last_role: 'user' },
            reply: [{ call: { tool: 'code_search', arguments: { query: 'ring_push' } } }],
          },
          {
            when: { last_tool_result: { contains: 'src/ring.c:2-4 function ring_push' } },
            reply: [{ call: { tool: 'finish', arguments: { answer: 'src/ring.c' } } }],
          },
        ],
      },
    ],
  },
  'the test',
);

let stack: TestStack;

beforeAll(async () => {
  const folder = mkdtempSync(join(tmpdir(), 'floe-e2e-search-'));
  const output = join(folder, 'index.db');
  await built('examples/search/documents.jsonl', { output });
  stack = await startTestStack({
    scenarios: [...(await loadScenarios(['examples/search/scenario.yaml'])), ...codeScenarios],
    node: {
      default_backend: 'none',
      allow_local: true,
      plugins: { services: { search: output, code_index_dir: join(folder, 'code') } },
    },
  });
});
afterAll(() => stack.close());

/** Runs one sample of an example task. */
async function resultOf(file: string, changes: Partial<TaskRequestInput> = {}): Promise<SessionResult> {
  const task = parse(await readFile(file, 'utf8')) as TaskRequestInput;
  const [result] = await stack.run({ ...task, num_samples: 1, max_attempts: 1, ...changes });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

describe('the search agents', () => {
  it('answers a question from two documents of an index', async () => {
    const result = await resultOf('examples/search/task.yaml');
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 1,
      agent: {
        episode: { status: 'finished', metrics: { 'calls.search': 2, 'calls.open_page': 1, 'search.results': 4 } },
      },
    });
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({ mismatches: [] });
  });

  it('researches a question with a plan', async () => {
    const result = await resultOf('examples/search/deep-research.yaml');
    expect(result).toMatchObject({ outcome: 'completed', reward: 1 });
    expect(result.agent?.episode?.metrics).toMatchObject({ 'calls.think': 1, 'calls.search': 2 });
  });
});

describe('code_search', () => {
  it('finds a definition in the code of a sandbox', async () => {
    const result = await resultOf('examples/search/task.yaml', {
      instruction: 'Where is the ring pushed?',
      agent: { harness: 'floe', settings: { agent: 'tool_call', tools: ['code_search', 'finish'] } },
      runtime: {
        backend: 'local',
        prepare: [{ type: 'exec', command: `mkdir src && printf '%s' '${RING}' > src/ring.c` }],
      },
      evaluator: { strategy: 'answer', config: { kind: 'exact', from: 'last_message', expected: 'src/ring.c' } },
    });
    expect(result.error).toBeNull();
    expect(result).toMatchObject({ outcome: 'completed', reward: 1 });
    expect(result.agent?.episode?.metrics).toMatchObject({ 'calls.code_search': 1, 'code_search.entity': 1 });
  });
});
