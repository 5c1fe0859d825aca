import type { RuntimeCapabilities } from '@floe-rl/sandbox';
import { expect, it } from 'vitest';
import { backendFindings } from '../../src/commands/doctor.ts';

const PROBLEM = { problem: 'bwrap is not installed', remedy: 'apt-get install -y bubblewrap' };
const CAPABILITIES: RuntimeCapabilities = {
  isolation: 'namespaces',
  limits: { memory_mb: 'checks', max_processes: 'kernel', cpus: 'none', storage_mb: 'kernel', max_output_mb: 'floe' },
  networks: ['none'],
  snapshots: { method: 'overlay', files: 'all' },
  privileges: 'any',
};
const WEAKNESS = { problem: 'runtime.cpus has no effect', remedy: 'use control groups' };

it('floe doctor reports the system call filter and the limits of a runtime that works, and no remedy', () => {
  const description = {
    isolation: 'with a filter that denies 9 system calls',
    weaknesses: [],
    capabilities: CAPABILITIES,
  };
  expect(backendFindings('bubblewrap', { problem: null, description })).toEqual([
    {
      part: 'runtime bubblewrap',
      ok: true,
      text: 'works, with a filter that denies 9 system calls; limits by the kernel: max_processes, storage_mb; by checks: memory_mb; not enforced: cpus',
      remedy: null,
    },
  ]);
});

it('floe doctor reports each limit that the machine cannot enforce as a warning, which is not a failure', () => {
  const description = { isolation: 'with a filter', weaknesses: [WEAKNESS], capabilities: CAPABILITIES };
  const [, warning] = backendFindings('bubblewrap', { problem: null, description });
  expect(warning).toEqual({
    part: 'runtime bubblewrap',
    ok: true,
    text: WEAKNESS.problem,
    remedy: WEAKNESS.remedy,
  });
});

it('floe doctor reports only the problem of a runtime that does not work', () => {
  expect(backendFindings('bubblewrap', { problem: PROBLEM })).toEqual([
    { part: 'runtime bubblewrap', ok: false, text: PROBLEM.problem, remedy: PROBLEM.remedy },
  ]);
});

it('floe doctor does not report a machine without a container engine as a failure', () => {
  const problem = { problem: 'the container engine does not respond', remedy: 'start docker' };
  expect(backendFindings('docker', { problem })).toEqual([
    { part: 'runtime docker', ok: true, text: `not available: ${problem.problem}`, remedy: problem.remedy },
  ]);
});
