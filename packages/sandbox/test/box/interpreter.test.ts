import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { inputHandled, nextEventLoopTurn } from '../../../core/src/event-loop.ts';
import { type Dialect, Interpreter } from '../../src/box/interpreter.ts';

/** Longer than the grace time for the last output of an interpreter. */
const LATE_MS = 400;

/** A program that ends without running code. */
const dialectOf = (script: string): Dialect => ({
  argv: ['sh', '-c', script],
  cwd: '/',
  env: { PATH: process.env.PATH ?? '' },
  marker: 'FLOE_MARK=interpreter',
  ...{ isTerminal: false, readsControl: false, readsAhead: false, maxDetailBytes: 0 },
  setUp: Buffer.alloc(0),
  begin: () => Buffer.alloc(0),
  finish: () => null,
});

function blockFor(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

describe('an interpreter that has ended', () => {
  it('loses no output that is in its pipe when the event loop is late', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'floe-interpreter-'));
    onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
    const [ready, go, written] = [join(dir, 'ready'), join(dir, 'go'), join(dir, 'written')];
    // A process that does not belong to the interpreter writes while the event loop is blocked.
    const writer = `: >${ready}; while [ ! -e ${go} ]; do :; done; echo last; : >${written}`;
    const interpreter = await Interpreter.spawn(
      dialectOf(`setsid sh -c '${writer}' & while [ ! -e ${ready} ]; do :; done`),
    );
    const running = interpreter.execute(Buffer.alloc(0), {
      timeoutMs: 60_000,
      maxOutputBytes: 1_000,
      killsRest: false,
    });
    while (!interpreter.hasEnded) await nextEventLoopTurn();
    await inputHandled();
    blockFor(LATE_MS);
    writeFileSync(go, '');
    while (!existsSync(written)) blockFor(1);
    const { stdout, droppedBytes, processEnd } = await running;
    expect([stdout.toString(), droppedBytes, processEnd]).toEqual(['last\n', 0, 'exited']);
  });
});
