import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { KEYRING, launched, PERL } from '../../../../../../verify/fixtures/launcher.ts';
import { bubblewrapMissing } from '../../../backends/workbench.ts';

const noPerl = existsSync(PERL) ? null : 'perl is not installed: apt-get install -y perl';

/** Program that runs each of the given commands in a sandbox of its own, one after the other, and prints their outputs as JSON. */
const GATEWAY = `
const [packages, stateDir, backend, commands] = process.argv.slice(1);
const { createSpawner } = await import(packages + '/sandbox/dist/spawn/client.js');
const { createRuntimeProviders } = await import(packages + '/sandbox/dist/backends/providers.js');
const { systemClock } = await import(packages + '/core/dist/clock.js');
const { runtimeSpecSchema } = await import(packages + '/core/dist/schema/index.js');
const spawner = await createSpawner();
const provider = createRuntimeProviders({ spawner, clock: systemClock, stateDir }).get(backend);
const { signal } = new AbortController();
const outputs = [];
for (const [index, command] of JSON.parse(commands).entries()) {
  const request = { name: 's' + index, spec: runtimeSpecSchema.parse({}), proxy: null, readOnlyMounts: [] };
  const runtime = await provider.start(request, signal);
  const { stdout, stderr } = await runtime.exec({ command }, signal);
  outputs.push(stdout + stderr);
  await runtime.stop();
}
console.log(JSON.stringify(outputs));
await spawner.close();
`;

const perl = (script: string): string[] => [PERL, '-e', script];
const READ_DESCRIPTOR = perl('open(my $f, "<&=", 37) or die "37: $!\\n"; print <$f>');
const LIST_DESCRIPTORS = ['/bin/sh', '-c', 'exec ls /proc/self/fd'];
/** Output of {@link LIST_DESCRIPTORS} with the standard descriptors and the directory that `ls` itself opens. */
const STANDARD_DESCRIPTORS = '0\n1\n2\n3\n';

/** The key that the launcher leaves in its session keyring. */
const OF_THE_HOST = { keyName: 'of-the-host', keyValue: 'secret of the host' };

const ENOSYS = 'Function not implemented';

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-inherit-'));
  writeFileSync(join(dir, 'secret'), 'content of the host', { mode: 0o600 });
});
afterAll(() => rmSync(dir, { recursive: true }));

/**
 * Starts a gateway with a launcher program that has a session keyring and open descriptors, which the gateway could inherit. Runs each
 * command in a sandbox of this gateway, and returns the outputs.
 */
async function runLaunched(backend: RuntimeBackend, commands: readonly string[][]): Promise<string[]> {
  const gateway = [process.execPath, '--input-type=module', '-e', GATEWAY, resolve('packages'), join(dir, 'state')];
  const leftovers = { ...OF_THE_HOST, file: join(dir, 'secret'), directory: dir };
  const [program = '', ...args] = launched(leftovers, [...gateway, backend, JSON.stringify(commands)]);
  const { stdout } = await promisify(execFile)(program, args);
  return JSON.parse(stdout) as string[];
}

/** Returns the reason why the kernel of this machine offers no keyrings to the tests; `null` when it offers them. */
async function keyringsMissing(): Promise<string | null> {
  const [program = '', ...args] = launched({ ...OF_THE_HOST, file: '/dev/null', directory: '/' }, ['/bin/true']);
  return promisify(execFile)(program, args).then(
    () => null,
    (error: { stderr: string }) => `keyrings cannot be used here (${error.stderr.trim()}): allow the call keyctl`,
  );
}

const problem = await bubblewrapMissing();
const noKeyrings = noPerl ?? (await keyringsMissing());

describeIf(problem ?? noKeyrings, 'a bubblewrap sandbox of a gateway with a session keyring', () => {
  it('can neither read a key of the host nor leave one for another sandbox', async () => {
    const read = perl(`${KEYRING} print read_key("of-the-host")`);
    const leave = perl(`${KEYRING} print add_key("of-an-agent", "left by an agent") == -1 ? "$!" : "added"`);
    const find = perl(`${KEYRING} print read_key("of-an-agent")`);
    expect(await runLaunched('bubblewrap', [read, leave, find])).toEqual([ENOSYS, ENOSYS, ENOSYS]);
  });

  it('does not list the names of the keys', async () => {
    const [keys, counts] = await runLaunched('bubblewrap', [
      ['cat', '/proc/keys'],
      ['cat', '/proc/key-users'],
    ]);
    expect([keys, counts]).toEqual(['', '']);
  });
});

for (const backend of ['bubblewrap', 'local'] as const) {
  const missing = backend === 'bubblewrap' ? problem : null;
  describeIf(missing ?? noKeyrings, `a ${backend} sandbox of a gateway that inherited descriptors`, () => {
    it('inherits none of them', async () => {
      const [content, descriptors] = await runLaunched(backend, [READ_DESCRIPTOR, LIST_DESCRIPTORS]);
      expect(content).toBe('37: Bad file descriptor\n');
      expect(descriptors).toBe(STANDARD_DESCRIPTORS);
    });
  });
}
