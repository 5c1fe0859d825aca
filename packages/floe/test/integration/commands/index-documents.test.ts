import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { startHttpServer } from '../../../../agents/test/environments/remote/http-server.ts';
import { emptyFolder, rowsFile } from '../../../../search/test/search/index.ts';
import { CLI, run } from '../../commands/machine.ts';

const index = (...words: string[]): ReturnType<typeof run> => run([process.execPath, CLI, 'index', ...words]);

const GOOD = { id: 'a', text: 'a heron' };

describe('floe index', () => {
  it('refuses a folder that does not exist, and makes no file', async () => {
    const output = join(emptyFolder(), 'index.db');
    const { code, output: printed } = await index('/nowhere', '--output', output);
    expect(printed).toMatch(/setup_failed: .*\/nowhere/);
    expect(code).toBe(1);
    expect(readdirSync(dirname(output))).toEqual([]);
  });

  it('names the line and the field of a bad row and makes no file, or leaves the row out', async () => {
    const source = rowsFile([GOOD, { id: 'b', text: 7 }]);
    const output = join(emptyFolder(), 'index.db');
    const refused = await index(source, '--output', output);
    expect(refused.output).toMatch(/bad row .*rows\.jsonl:2: text/);
    expect(refused.output).toMatch(/schema_violation: 1 rows are no documents.*--skip-bad-rows/);
    expect(refused.code).toBeGreaterThan(0);
    expect(readdirSync(dirname(output))).toEqual([]);
    const made = await index(source, '--output', output, '--skip-bad-rows');
    expect(made.output).toContain('1 documents, 1 passages, 1 bad rows left out');
    expect(made.code).toBe(0);
  });

  it.each(['SIGINT', 'SIGKILL'] as const)('leaves no half index when it is ended by %s', async (signal) => {
    let asked = (): void => {};
    const began = new Promise<void>((resolve) => (asked = resolve));
    // A service that never answers keeps the command at its work.
    const service = await startHttpServer(() => {
      asked();
      return undefined;
    });
    const output = join(emptyFolder(), 'index.db');
    const words = ['--output', output, '--embeddings', service.url, '--embedding-model', 'm'];
    const child = spawn(process.execPath, [CLI, 'index', rowsFile([GOOD]), ...words]);
    const [printed, ended] = [text(child.stderr), once(child, 'exit')];
    await began;
    child.kill(signal);
    await ended;
    await service.close();
    expect(existsSync(output)).toBe(false);
    if (signal === 'SIGINT') {
      expect(await printed).toContain('Interrupted; no index was made.');
      expect(child.exitCode).toBe(130);
      expect(readdirSync(dirname(output))).toEqual([]);
    }
    // Files that a killed command has left do not hinder the next command.
    expect((await index(rowsFile([GOOD]), '--output', output)).code).toBe(0);
  });
});
