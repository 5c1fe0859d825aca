import { homedir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, it, vi } from 'vitest';
import { cacheDir } from '../../src/commands/cache-dir.ts';
import { harnessDir } from '../../src/commands/home.ts';

afterEach(() => {
  vi.unstubAllEnvs();
});

it.each([
  [undefined, join(homedir(), '.cache')],
  ['', join(homedir(), '.cache')],
  ['relative', join(homedir(), '.cache')],
  ['/var/cache', '/var/cache'],
])('the cache is in the cache directory of the user when XDG_CACHE_HOME is %j', (value, expected) => {
  vi.stubEnv('XDG_CACHE_HOME', value);
  expect(cacheDir()).toBe(join(expected, 'floe'));
});

it('the path of the harness directory is made absolute', () => {
  vi.stubEnv('FLOE_HARNESS_DIR', 'here');
  expect(harnessDir()).toBe(join(process.cwd(), 'here'));
  vi.stubEnv('FLOE_HARNESS_DIR', '');
  expect(harnessDir()).toBe(join(cacheDir(), 'harnesses'));
});
