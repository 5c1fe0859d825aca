import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { openLocalBox } from '../../src/backends/local-box.ts';
import { programPath } from '../../src/programs.ts';
import { createSpawner } from '../../src/spawn/client.ts';

const { signal } = new AbortController();

function emptyFolder(): string {
  return mkdtempSync(join(tmpdir(), 'floe-program-'));
}

describe('a compiled program of the sandbox', { timeout: 60_000 }, () => {
  it('box-server offers the tools of a directory', async () => {
    const box = await openLocalBox(emptyFolder(), signal);
    await box.close();
  });

  it('mcp-server answers a request, and ends with its input', () => {
    const input = `${JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' })}\n`;
    const options = { cwd: emptyFolder(), input, encoding: 'utf8' } as const;
    const { status, stdout, stderr } = spawnSync(process.execPath, [programPath('mcp-server')], options);
    expect(stderr).toBe('');
    expect(JSON.parse(stdout)).toEqual({ jsonrpc: '2.0', id: 1, result: {} });
    expect(status).toBe(0);
  });

  it('browser answers the empty request, and ends with its connection', async () => {
    const child = spawn(process.execPath, [programPath('browser'), 'no-browser'], {
      cwd: emptyFolder(),
      stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    });
    const ended = new Promise((resolve) => child.once('exit', resolve));
    const control = child.stdio[3] as Duplex;
    control.write('abc 0\n');
    let answer = '';
    for await (const chunk of control) {
      answer += chunk;
      if (answer.endsWith('E abc 0 0\n')) break;
    }
    expect(answer).toBe('A abc\nE abc 0 0\n');
    expect(await ended).toBe(0);
  });

  it('proxy-relay ends with the exit code of its command', () => {
    const forward = `0=${join(emptyFolder(), 'socket')}`;
    const args = [programPath('proxy-relay'), forward, 'X_', process.execPath, '-e', 'process.exit(42)'];
    expect(spawnSync(process.execPath, args, { encoding: 'utf8' })).toMatchObject({ status: 42, stderr: '' });
  });

  it('spawn-helper starts with its client', async () => {
    const spawner = await createSpawner();
    expect(spawner.helperPid).toBeGreaterThan(0);
    await spawner.close();
  });
});
