import { expect, test } from 'vitest';
import { diagnose } from '../../../src/runtimes/bubblewrap/diagnosis.ts';
import { missingProgram } from '../../../src/runtimes/bubblewrap/host.ts';
import { itIf, NOT_LINUX } from '../../skip.ts';

const linux = process.platform === 'linux';

itIf(linux ? null : NOT_LINUX, 'a missing program comes with the command that installs its package', async () => {
  const { problem, remedy } = await diagnose({ missing: 'bwrap', failure: null });
  expect(problem).toBe('bwrap is not installed');
  expect(remedy).toMatch(/(apt-get install -y|dnf install -y|apk add|install the package) bubblewrap$/);
  expect((await diagnose({ missing: 'nsenter', failure: null })).remedy).toMatch(/util-linux$/);
});

itIf(linux ? null : NOT_LINUX, 'any other failure is told in its own words', async () => {
  const { problem, remedy } = await diagnose({ missing: null, failure: 'bwrap: no permissions\n' });
  expect(problem).toMatch(/bwrap: no permissions$|user namespaces are blocked/);
  expect(remedy).not.toBe('');
});

test('other systems are told that it needs Linux', async (context) => {
  if (linux) context.skip('this is Linux: run the tests on another system');
  expect((await diagnose({ missing: null, failure: null })).problem).toContain('needs Linux');
});

test('the first program that is not there is named', async () => {
  expect(await missingProgram(['sh', 'no-such-program', 'neither-this'])).toBe('no-such-program');
  expect(await missingProgram(['sh'])).toBeNull();
});
