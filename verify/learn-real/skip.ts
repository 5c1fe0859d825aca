import { spawnSync } from 'node:child_process';

/** Returns why the program cannot run on this machine; `null` when it can. */
export function missingParts(): string | null {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'vLLM for CPUs is installed on x86-64 Linux only';
  const probe = spawnSync('bwrap', ['--ro-bind', '/', '/', 'true']);
  if (probe.status !== 0) return 'bubblewrap does not work: install the package bubblewrap';
  return spawnSync('/usr/bin/python3', ['--version']).status === 0 ? null : 'the sandboxes have no /usr/bin/python3';
}
