import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadCatalog } from '../../src/host/catalog.ts';

const SUMS = join(import.meta.dirname, 'plugins', 'sums.js');

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-handlers-'));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

const catalogWith = (handlers: Record<string, string>) =>
  loadCatalog({ agents: {}, environments: {}, tools: {}, handlers });

describe('modules of handlers', () => {
  it('are refused when two are for the same data source', async () => {
    await expect(catalogWith({ one: SUMS, two: SUMS })).rejects.toMatchObject({
      code: 'setup_failed',
      message: 'the handlers one and two are both for data source sums',
    });
  });

  it('are refused when they lack a stage or their data sources', async () => {
    for (const text of ['{ init() {}, run() {}, dataSources: [] }', '{ init() {}, run() {}, eval() {} }']) {
      // A module is imported once, so each text has a name of its own.
      const copy = join(dir, `${text.length}.mjs`);
      await writeFile(copy, `export const handler = ${text};\n`);
      await expect(catalogWith({ half: copy })).rejects.toThrow(
        'exports no handler (defineHandler) as default or handler',
      );
    }
  });
});
