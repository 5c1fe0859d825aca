import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { itIf } from '../../../../../test/skip.ts';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { dashboardLink } from '../../../src/commands/dashboard-link.ts';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-link-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

describe('the address of the dashboard', () => {
  it('has a token in its fragment alone, which browsers do not send', () => {
    const link = new URL(dashboardLink('http://127.0.0.1:8080', 'a/b'));
    expect(`${link.origin}${link.pathname}`).toBe('http://127.0.0.1:8080/dashboard/');
    expect(link.hash).toBe('#/sign-in/a%2Fb');
    expect(dashboardLink('http://127.0.0.1:8080')).toBe('http://127.0.0.1:8080/dashboard/');
  });

  itIf(
    process.platform === 'linux' ? null : 'the opener is another program on this system',
    'is given to the browser in a file of this user, not as an argument',
    async () => {
      const [seen, done] = [join(dir, 'seen'), join(dir, 'done')];
      writeFileSync(join(dir, 'xdg-open'), `#!/bin/sh\necho "$@" >'${seen}'\ncp "$1" '${done}'\n`, { mode: 0o755 });
      const module = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'dashboard-link.js');
      const program = `import { openBrowser } from '${module}'; openBrowser('http://127.0.0.1:1/dashboard/#/sign-in/secret'); setTimeout(() => {}, 1000);`;
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
        env: { ...process.env, PATH: `${dir}:${process.env.PATH}` },
      });
      await once(child, 'exit');
      const opened = readFileSync(seen, 'utf8').trim();
      expect(opened).toMatch(/dashboard\.html$/);
      expect(readFileSync(done, 'utf8')).toContain('location.replace("http://127.0.0.1:1/dashboard/#/sign-in/secret")');
      // The folder, which only this user could read, is removed with the process.
      expect(() => statSync(dirname(opened))).toThrow('ENOENT');
    },
  );
});
