import { constants } from 'node:buffer';
import { chmodSync, mkdirSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { MIB } from '@floe-rl/core';
import { OUTCOMES } from '@floe-rl/core/protocol';
import { runtimeSpecSchema, type SessionSummary } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { makeImage } from '../../../../../../verify/fixtures/image.ts';
import {
  bubblewrapMissing,
  processesMentioning,
  uniqueSeconds,
  Workbench,
} from '../../../../../sandbox/test/backends/workbench.ts';
import { runSession } from '../../../../src/gateway/session/session-runner.ts';
import { shellHarness } from '../../../../src/harnesses/shell.ts';
import { bench } from '../../../gateway/session-bench.ts';

const problem = await bubblewrapMissing();

/** Shell commands of an agent that damage its own sandbox, each with the outcome of its session. */
const DAMAGE: readonly (readonly [what: string, command: string, outcome: string])[] = [
  ['fills the disk of its sandbox', 'cat /dev/zero > fill; cat /dev/zero > /artifacts/fill; true', 'completed'],
  ['fills the disk of its sandbox and fails', 'cat /dev/zero > fill; exit 3', 'agent_error'],
  ['removes its work directory', 'cd /; rm -rf /work/* /work; true', 'completed'],
  [
    'replaces the directory of its artifacts by a link',
    'rm -rf /artifacts/*; ln -s /proc /artifacts/p; true',
    'completed',
  ],
  ['leaves links to /proc', 'ln -s /proc/self/mem mem; ln -s /proc/1/root /artifacts/root; true', 'completed'],
  ['leaves pipes and endless folders', 'mkfifo /artifacts/pipe; mkdir -p a/b; ln -s .. a/b/c; true', 'completed'],
  ['kills every process of its sandbox', 'kill -9 -1; sleep 60', 'agent_error'],
  ['kills the relay, its parent process', 'kill -9 $PPID; sleep 60', 'agent_error'],
  ['stops the relay and ends', 'kill -STOP $PPID; (sleep 0.1; kill -CONT $PPID) & exit 4', 'agent_error'],
  ['ends by a signal', 'kill -SEGV $$', 'agent_error'],
  ['uses up its processes', 'i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i + 1)); done; wait', 'agent_error'],
  ['closes its output and leaves a process', 'exec >&- 2>&-; (trap "" TERM HUP; sleep 60) & exit 0', 'completed'],
  [
    'prints bytes that are no text',
    'head -c 3000000 /dev/urandom; head -c 3000000 /dev/urandom >&2; true',
    'completed',
  ],
  ['removes the programs of its sandbox', 'rm -rf /bin /usr /lib /lib64 2>/dev/null; true', 'completed'],
];

describeIf(problem, 'an agent that damages its own sandbox', () => {
  let workbench: Workbench;
  let socket: string;
  let server: Server;
  beforeAll(async () => {
    workbench = await Workbench.open();
    socket = join(workbench.dir, 'proxy.sock');
    server = createServer().listen(socket);
    chmodSync(workbench.dir, 0o755);
  });
  afterAll(async () => {
    server.close();
    await workbench.close();
  });

  /** Runs a session in a real sandbox. The agent is `command`. One model call is answered, and the evaluator returns a reward of 0. */
  async function sessionOf(command: string, parts: { image?: string; during?: () => Promise<void> } = {}) {
    const { attempt, deps } = bench({
      task: {
        agent: { harness: 'shell', custom_shell: command },
        evaluator: { strategy: 'fake', refresh_runtime: false },
      },
      start: async (_, request, signal) => {
        const spec = { ...request.spec, storage_mb: 8, max_processes: 100, image: parts.image ?? null };
        const proxy = { socketPath: socket, tcpOrigin: 'http://127.0.0.1:1' };
        return workbench.provider('bubblewrap').start({ ...request, spec, proxy }, signal);
      },
    });
    const ended = runSession(attempt, deps);
    await parts.during?.();
    return (await ended)?.summary;
  }

  function expectOwnFault(summary: SessionSummary | undefined, outcome: string): void {
    expect(summary).toMatchObject({ outcome, reward: 0 });
    expect(OUTCOMES[summary?.outcome ?? 'infra_error'].retried).toBe(false);
  }

  it.each(DAMAGE)('costs only its own session when it %s', async (_, command, outcome) => {
    expectOwnFault(await sessionOf(command), outcome);
  });

  it('costs only its own session when it breaks the shell of its image', async () => {
    const image = join(workbench.dir, 'image');
    makeImage(image);
    mkdirSync(join(image, 'work'), { recursive: true });
    expectOwnFault(await sessionOf('rm /usr/bin/sh /usr/bin/tar', { image }), 'completed');
    expectOwnFault(await sessionOf('echo broken > /usr/bin/sh; exit 5', { image }), 'agent_error');
  });

  it('costs only its own session when the host kills all of its processes', async () => {
    const seconds = uniqueSeconds();
    const summary = await sessionOf(`sleep ${seconds}`, {
      during: async () => {
        for (;;) {
          const pids = (await processesMentioning(seconds)).map((line) => Number(line.split(' ')[0]));
          const names = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')));
          if (!names.includes('sleep\n')) continue;
          for (const pid of pids.filter((_, index) => names[index] === 'bwrap\n')) process.kill(pid, 'SIGKILL');
          return;
        }
      },
    });
    expectOwnFault(summary, 'agent_error');
  });
});

it('an agent costs only its own session when its output cannot be judged', async () => {
  const { attempt, deps } = bench({ task: { evaluator: { strategy: 'fake', refresh_runtime: false } } });
  const judge = (): never => {
    throw new RangeError('Maximum call stack size exceeded');
  };
  const harnesses = new Map([['shell', { ...shellHarness, judge }]]);
  const summary = (await runSession(attempt, { ...deps, harnesses }))?.summary;
  expect(summary).toMatchObject({ outcome: 'agent_error', reward: 0, error: { code: 'harness_failed' } });
  expect(summary?.error?.message).toContain('the output cannot be judged');
});

it('an agent cannot print more than fits into one text', () => {
  const { max_output_mb: most } = runtimeSpecSchema.parse({ max_output_mb: 256 });
  expect(most * MIB).toBeLessThan(constants.MAX_STRING_LENGTH);
  expect(runtimeSpecSchema.safeParse({ max_output_mb: 257 }).success).toBe(false);
});
