import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { lastOutput } from '../../src/last-output.ts';
import { VirtualClock } from '../../src/virtual-clock.ts';

/** Starts a shell script whose output another process may hold open, and reads the output. */
function started(script: string) {
  const child = spawn('sh', ['-c', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  const closed = once(child, 'close');
  const chunks: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));
  return { child, outputs: { streams: [child.stdout], closed }, text: () => Buffer.concat(chunks).toString() };
}

describe('the wait for the last output', () => {
  it('ends when the streams end', async () => {
    const { outputs, text } = started('echo all');
    await lastOutput(outputs, 250, new VirtualClock());
    expect(text()).toBe('all\n');
  });

  it('ends after the grace time when another process holds the streams open', async () => {
    const clock = new VirtualClock();
    const { child, outputs } = started('exec tail -f /dev/null');
    const waiting = lastOutput(outputs, 250, clock);
    clock.advance(250);
    await waiting;
    child.kill('SIGKILL');
    await outputs.closed;
  });

  it('reads what has arrived when the timer is late', async () => {
    const clock = new VirtualClock();
    const { child, outputs, text } = started('echo last; exec tail -f /dev/null');
    const waiting = lastOutput(outputs, 250, clock);
    // The line is in the pipe when the timer fires, before the event loop has read.
    while (!readFileSync(`/proc/${child.pid}/cmdline`, 'utf8').startsWith('tail'));
    clock.advance(250);
    await waiting;
    expect(text()).toBe('last\n');
    child.kill('SIGKILL');
    await outputs.closed;
  });

  it('ends after the grace time although another process keeps writing', async () => {
    const clock = new VirtualClock();
    const stream = new Readable({ read: () => void setImmediate(() => stream.push(Buffer.alloc(64 * 1024))) });
    stream.resume();
    const waiting = lastOutput({ streams: [stream], closed: new Promise(() => {}) }, 250, clock);
    clock.advance(250);
    await waiting;
    stream.destroy();
  });
});
