import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { entryPath } from '@floe-rl/core';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger } from '@floe-rl/sim';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { bubblewrapMissing } from '../../packages/sandbox/test/backends/workbench.ts';
import { describeIf } from '../skip.ts';
import { type Call, scenarioOf } from './real-harness.ts';
import { startTestStack } from './stack.ts';

const problem = await bubblewrapMissing();

/**
 * Program that replaces the harness mini-swe-agent (`mini`) in the image. It makes one model call with the task from its configuration
 * file.
 */
const MINI = `#!/usr/bin/node
const { readFileSync } = require('node:fs');
const config = JSON.parse(readFileSync(process.argv[5], 'utf8'));
const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: config.run.task }] });
const headers = { authorization: 'Bearer ' + process.env.OPENAI_API_KEY, 'content-type': 'application/json' };
fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST', headers, body }).then(async (reply) => {
  console.log((await reply.json()).choices[0].message.content, config.environment.cwd);
  console.log("Saved trajectory to '" + process.argv.at(-1) + "'");
});
`;

function copyWithLibraries(program: string, image: string, as: string): void {
  copyFileSync(realpathSync(program), join(image, as));
  const libraries = execFileSync('ldd', [realpathSync(program)]).toString();
  for (const [, library = ''] of libraries.matchAll(/(\/\S+) \(0x/g)) {
    mkdirSync(join(image, dirname(library)), { recursive: true });
    copyFileSync(realpathSync(library), join(image, library));
  }
}

/** Creates a root file system for sandboxes in the directory `image`. It has a shell, Node, and two agents that need no installation. */
function makeImage(image: string): void {
  for (const name of ['usr/bin', 'etc', 'proc', 'dev', 'tmp', 'var', 'work', 'opt']) {
    mkdirSync(join(image, name), { recursive: true });
  }
  symlinkSync('usr/bin', join(image, 'bin'));
  for (const name of ['sh', 'cat', 'head', 'tar', 'mkdir', 'ls'])
    copyWithLibraries(`/usr/bin/${name}`, image, `usr/bin/${name}`);
  copyWithLibraries(process.execPath, image, 'usr/bin/node');
  copyFileSync(
    entryPath(import.meta.url, '../../verify/fixtures/openhands-process.js'),
    join(image, 'opt/openhands.mjs'),
  );
  writeFileSync(join(image, 'usr/bin/openhands'), '#!/bin/sh\nexec node /opt/openhands.mjs "$@"\n');
  writeFileSync(join(image, 'opt/mini'), MINI);
  for (const name of ['usr/bin/openhands', 'opt/mini']) chmodSync(join(image, name), 0o755);
}

describeIf(problem, 'a harness in the image', () => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-image-'));
    chmodSync(dir, 0o755);
    makeImage(dir);
  });
  afterAll(() => rmSync(dir, { recursive: true, force: true }));

  async function run(
    agent: TaskRequestInput['agent'],
    turns: readonly (string | Call)[],
    image: string | null = dir,
  ): Promise<{ result: SessionResult; sent: string }> {
    // The node itself has no harness installed, so the harness in the image must run.
    const stack = await startTestStack({ scenarios: scenarioOf(turns), node: { default_backend: 'bubblewrap' } });
    try {
      const [result] = await stack.run({
        instruction: 'write "done" into out.txt\n--now $(id)',
        timeout_seconds: 240,
        max_attempts: 1,
        agent,
        runtime: { image },
        evaluator: {
          strategy: 'test_on_output',
          refresh_runtime: false,
          config: {
            test_command: 'if [ "$(cat out.txt)" = done ]; then echo PASSED out; else echo FAILED out; fi',
            expected_output_json: { out: 'PASSED' },
          },
        },
      });
      if (result === undefined) throw new Error('the session has no result');
      expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed').mismatches).toEqual([]);
      const sent = result.completion_count === 0 ? '' : String(await stack.client.completions(result.session_id));
      return { result, sent };
    } finally {
      await stack.close();
    }
  }

  const write = { tool: 'terminal', arguments: { command: 'echo done > out.txt' } };
  const finish = { tool: 'finish', arguments: { message: 'Done.' } };

  it('runs as OpenHands documents its command line', async () => {
    const { result, sent } = await run({ harness: 'openhands' }, [write, finish]);
    expect(result.error?.message ?? result.outcome).toBe('completed');
    expect(result).toMatchObject({ reward: 1, completion_count: 2, trace_count: 1 });
    expect(sent).toContain('write \\"done\\" into out.txt\\n--now $(id)');
  });

  it('fails by its reported error although it exits with 0', async () => {
    const { result } = await run({ harness: 'openhands', env: { LLM_MODEL: 'openai/another' } }, [write]);
    expect(result.agent?.exit_code).toBe(0);
    expect(result.error?.message).toMatch(/openhands ended \(LLMBadRequestError: .*another/);
  });

  it('is reported with a hint when the image does not contain it', async () => {
    const { result } = await run({ harness: 'openhands' }, [write], null);
    expect(result.outcome).toBe('no_completions');
    expect(result.error?.message).toContain('runtime.image');
  });

  it('can replace a harness that floe would install', async () => {
    const agent = { harness: 'mini_swe_agent', settings: { program: '/opt/mini' } };
    const { result } = await run(agent, ['Done.']);
    expect(result.error?.message ?? result.outcome).toBe('completed');
    expect(result.agent?.stdout_tail).toContain('Done. /work');
    const { result: missing } = await run({ harness: 'mini_swe_agent' }, ['Done.']);
    expect(missing.error?.code).toBe('harness_missing');
  });
});
