import { execFileSync } from 'node:child_process';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { entryPath } from '../../../src/package-root.ts';

const CORE = pathToFileURL(entryPath(import.meta.url, '../../../src/index.js'));

it('a process waits for a call of its thread, and ends while the thread waits for calls', { timeout: 60_000 }, () => {
  const thread = `const { parentPort } = require('node:worker_threads');
    parentPort.on('message', ({ id }) => setImmediate(() => parentPort.postMessage({ type: 'result', id, value: 'done' })));`;
  const program = `import { Thread } from ${JSON.stringify(CORE)};
    const thread = new Thread(${JSON.stringify(thread)}, () => new Error('ended'), { eval: true, execArgv: [] });
    console.log(await thread.call('work'));`;
  const run = ['--input-type=module', '-e', program];
  expect(execFileSync(process.execPath, run, { encoding: 'utf8', timeout: 50_000 })).toBe('done\n');
});
