import { expect, it } from 'vitest';
import { itIf, NOT_LINUX } from '../../../../../../test/skip.ts';
import { diagnose } from '../../../../src/backends/bubblewrap/diagnosis.ts';
import { unenforcedLimits } from '../../../../src/backends/host-limits.ts';
import { missingProgram } from '../../../../src/workspace/environment.ts';

const linux = process.platform === 'linux';

itIf(
  linux ? null : NOT_LINUX,
  'the diagnosis names the command that installs the package of a missing program',
  async () => {
    const { problem, remedy } = await diagnose({ missing: 'bwrap', failure: null });
    expect(problem).toBe('bwrap is not installed');
    expect(remedy).toMatch(/(apt-get install -y|dnf install -y|apk add|install the package) bubblewrap$/);
    expect((await diagnose({ missing: 'nsenter', failure: null })).remedy).toMatch(/util-linux$/);
  },
);

itIf(linux ? null : NOT_LINUX, 'the diagnosis includes the message of any other failure', async () => {
  const { problem, remedy } = await diagnose({ missing: null, failure: 'bwrap: no permissions\n' });
  expect(problem).toMatch(/bwrap: no permissions$|user namespaces are blocked/);
  expect(remedy).not.toBe('');
});

it('the diagnosis reports on other systems that bubblewrap needs Linux', async (context) => {
  if (linux) context.skip('this is Linux: run the tests on another system');
  expect((await diagnose({ missing: null, failure: null })).problem).toContain('needs Linux');
});

it('missingProgram names the first program that is not installed', async () => {
  expect(await missingProgram(['sh', 'no-such-program', 'neither-this'])).toBe('no-such-program');
  expect(await missingProgram(['sh'])).toBeNull();
});

it('unenforcedLimits warns of each limit that the kernel does not enforce', () => {
  expect(unenforcedLimits(new Set(['memory', 'pids', 'cpu']))).toBeNull();
  const noMemory = unenforcedLimits(new Set(['pids', 'cpu']));
  expect(noMemory?.problem).toMatch(/limits on memory can be created: .*memory_mb is only checked every 250 ms/);
  expect(noMemory?.problem).not.toContain('cpus');
  const none = unenforcedLimits(new Set());
  expect(none?.problem).toMatch(
    /memory and cpu can be created: .*memory_mb.*cpus has no effect, and a session with many busy processes slows down all others/,
  );
  expect(none?.remedy).toContain('Delegate=yes');
});
