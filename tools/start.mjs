// `npm start`: from a fresh clone to a finished demo.
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { ROOT, setUp } from './setup.mjs';

setUp();
const demo = spawn(process.execPath, [join(ROOT, 'dist', 'cli', 'main.js'), 'demo', ...process.argv.slice(2)], {
  cwd: ROOT,
  stdio: 'inherit',
});
// A terminal signals the whole group; `kill` does not.
for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => demo.kill(signal));
process.on('SIGINT', () => {});
// npm does not pass signals on; when it is gone, nobody waits for this any more.
const parent = process.ppid;
setInterval(() => {
  if (process.ppid !== parent) demo.kill('SIGTERM');
}, 1_000).unref();
demo.on('exit', (code, signal) => {
  process.exitCode = signal === null ? code : 1;
});
