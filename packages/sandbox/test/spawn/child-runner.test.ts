import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { isAlive, readProcess } from '../../src/processes/process-table.ts';
import { ChildRunner } from '../../src/spawn/child-runner.ts';
import type { HelperReply, SpawnResult } from '../../src/spawn/spawner.ts';

/** Longer than the grace time for the last output of a command. */
const LATE_MS = 400;
const PATH = process.env.PATH ?? '';

function folder(): string {
  const dir = mkdtempSync(join(tmpdir(), 'floe-runner-'));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Blocks the event loop, as a busy machine does. */
function blockFor(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

function blockUntil(isDone: () => boolean): void {
  while (!isDone()) blockFor(1);
}

/** A runner of shell scripts. `onReply` is called before a reply is handled, and `onExit` while the exit of a command is handled. */
function runnerOf({
  onReply = () => {},
  onExit = () => {},
}: {
  onReply?: (reply: HelperReply) => void;
  onExit?: () => void;
}) {
  const pids = new Map<number, number>();
  const results = new Map<number, (result: SpawnResult) => void>();
  const runner = new ChildRunner(
    (reply) => {
      if (reply.type === 'started') pids.set(reply.id, reply.pid);
      onReply(reply);
      if (reply.type === 'done') results.get(reply.id)?.(reply.result);
    },
    {
      ownsNamespace: () => {
        onExit();
        return false;
      },
    },
  );
  return {
    hasEnded: (id: number) => !isAlive(readProcess(pids.get(id) ?? 0)),
    run: (id: number, script: string) =>
      new Promise<SpawnResult>((resolve) => {
        results.set(id, resolve);
        const argv = ['sh', '-c', script];
        runner.start(id, { argv, env: { PATH }, maxOutputBytes: 1_000_000, stdin: undefined, reportsOutput: false });
      }),
  };
}

describe('the child runner', () => {
  it('loses no output when the event loop is late after the exit of a command whose output is unread', async () => {
    const go = join(folder(), 'go');
    const runner = runnerOf({
      // The event loop is blocked from the line of the second command until the first command has exited. Both exits are handled after that,
      // and the output of the first command is still unread.
      onReply: ({ type }) => {
        if (type !== 'line') return;
        writeFileSync(go, '');
        blockUntil(() => runner.hasEnded(1));
      },
      onExit: () => blockFor(LATE_MS),
    });
    const late = runner.run(1, `while [ ! -e ${go} ]; do :; done; echo out; echo err >&2`);
    const other = runner.run(2, 'echo line');
    // The line and the exit of the second command arrive together.
    blockUntil(() => runner.hasEnded(2));
    expect((await other).stdout.toString()).toBe('line\n');
    const { exitCode, stdout, stderr, droppedBytes } = await late;
    expect([exitCode, stdout.toString(), stderr.toString(), droppedBytes]).toEqual([0, 'out\n', 'err\n', 0]);
  });

  it('does not wait for the end of a process that does not belong to the command and holds the output open', async () => {
    const dir = folder();
    const pidFile = join(dir, 'pid');
    const runner = runnerOf({});
    const script = `setsid sh -c 'echo $$ >${pidFile}; exec tail -f /dev/null' & while [ ! -s ${pidFile} ]; do :; done; echo out; cat ${pidFile} >&2`;
    const { stdout, stderr, droppedBytes } = await runner.run(1, script);
    process.kill(Number(stderr.toString()), 'SIGKILL');
    expect([stdout.toString(), droppedBytes]).toEqual(['out\n', 0]);
  });
});
