import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { FloeClient } from '@floe-rl/client';
import { expect, it } from 'vitest';
import { CLI } from '../../commands/machine.ts';

/** Returns the files below a directory that other users may read, write or reach, with their modes. */
function openFiles(root: string, dir = root): string[] {
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => {
    const path = join(dir, entry.name);
    const mode = statSync(path).mode & 0o777;
    if ((mode & 0o077) === 0) return [];
    return entry.isDirectory() ? openFiles(root, path) : [`${mode.toString(8)} ${relative(root, path)}`];
  });
}

it('`floe up` keeps its files from other users in a directory of mode 755, with the umask 022', {
  timeout: 240_000,
}, async () => {
  const root = mkdtempSync(join(tmpdir(), 'floe-open-dir-'));
  const dir = join(root, 'data');
  for (const path of [dir, join(dir, 'server'), join(dir, 'server', 'blobs'), join(dir, 'gateway')]) mkdirSync(path);
  for (const path of [root, dir, join(dir, 'server'), join(dir, 'server', 'blobs'), join(dir, 'gateway')])
    chmodSync(path, 0o755);
  const [called, end] = [join(root, 'called'), join(root, 'end')];
  execFileSync('mkfifo', [called, end]);
  const args = ['up', '--json', '--sim', '--port', '0', '--backend', 'local', '--dir', dir, '--log-level', 'silent'];
  const child = spawn('sh', ['-c', 'umask 022; exec "$@"', 'sh', process.execPath, CLI, ...args], {
    env: { ...process.env, FLOE_HOME: dir, FLOE_TOKEN: '' },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const exited = once(child, 'exit');
  try {
    const [line] = await once(createInterface({ input: child.stdout }), 'line');
    const token = (await readFile(join(dir, 'control-token'), 'utf8')).trim();
    const client = new FloeClient({ url: JSON.parse(line).server, token });
    const call = `fetch(process.env.OPENAI_BASE_URL + '/chat/completions', {
      method: 'POST',
      headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'hi' }] }),
    }).then((reply) => reply.text())`;
    const shell = `"${process.execPath}" -e "$CALL"; echo called >"${called}"; cat "${end}"`;
    const agent = { harness: 'shell', custom_shell: shell, env: { CALL: call } };
    const { task_id: taskId } = await client.submit({ instruction: 'wait', agent });
    expect(await readFile(called, 'utf8')).toBe('called\n');
    const whileItRuns = openFiles(dir);
    expect(readdirSync(join(dir, 'gateway', 'journal'))).not.toEqual([]);
    await writeFile(end, 'end\n');
    const result = await client.results().next();
    expect(result.value).toMatchObject({ task_id: taskId, outcome: 'completed' });
    expect(readdirSync(join(dir, 'server', 'blobs')).length).toBeGreaterThan(1);
    expect([whileItRuns, openFiles(dir)]).toEqual([[], []]);
    await client.close();
  } finally {
    child.kill('SIGTERM');
    await exited;
    rmSync(root, { recursive: true, force: true });
  }
});
