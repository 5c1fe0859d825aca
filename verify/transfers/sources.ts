// Files on the host that a task names as sources of its uploads.
import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ErrorCode } from '@floe-rl/core';
import type { PrepareAction } from '@floe-rl/core/schema';
import type { Guard } from './guard.ts';

export type HostileSource = {
  readonly name: string;
  readonly action: PrepareAction;
  /** The code of the error that the upload must fail with; `null` when it must succeed. */
  readonly code: ErrorCode | null;
};

/** Creates the sources in `root`, which is an upload root. */
export function makeSources(root: string, guard: Guard): readonly HostileSource[] {
  const at = (name: string): string => join(root, name);
  const shell = (script: string): void =>
    void execFileSync('/bin/sh', ['-c', script], {
      cwd: root,
      env: { ...process.env, C: guard.canaryPath, O: guard.outside },
    });
  symlinkSync(guard.canaryPath, at('link'));
  symlinkSync(at('link'), at('chain'));
  symlinkSync(guard.outside, at('outside'));
  mkdirSync(at('tree'));
  writeFileSync(at('tree/file'), 'x');
  writeFileSync(at('tree/a\nb'), 'x');
  shell(
    'ln -s "$C" tree/link; ln -s "$O" tree/dir; mkfifo tree/pipe; mkfifo pipe; mknod tree/device c 1 5 2>/dev/null; ln -s . tree/loop; true',
  );
  shell('truncate -s 4G huge; mkdir many; i=0; while [ $i -lt 3000 ]; do : > many/$i; i=$((i + 1)); done');
  const file = (name: string, source: string, code: ErrorCode | null): HostileSource => ({
    name: `uploading ${name}`,
    action: { type: 'upload_file', source, target: 'uploaded' },
    code,
  });
  const dir = (name: string, source: string, code: ErrorCode | null): HostileSource => ({
    name: `uploading ${name}`,
    action: { type: 'upload_dir', source, target: 'uploaded' },
    code,
  });
  return [
    file('a link to a file outside of the upload roots', at('link'), 'source_forbidden'),
    file('a chain of links to a file outside of the upload roots', at('chain'), 'source_forbidden'),
    file('a path with .. to a file outside of the upload roots', `${root}/tree/../../guard/canary`, 'source_forbidden'),
    file('a file outside of the upload roots', guard.canaryPath, 'source_forbidden'),
    file('a file below a link to a directory outside of the upload roots', at('outside/file'), 'source_forbidden'),
    file('a file whose path only begins like an upload root', `${root}-other/file`, 'source_forbidden'),
    file('an environment of a process', '/proc/self/environ', 'source_forbidden'),
    file('a pipe as a file', at('pipe'), 'prepare_failed'),
    file('a directory as a file', at('tree'), 'prepare_failed'),
    file('a sparse file of 4 GB', at('huge'), 'prepare_failed'),
    file('a file that does not exist', at('missing'), 'prepare_failed'),
    dir('a directory with links, pipes, devices and line breaks', at('tree'), null),
    dir('a directory with 3,000 files', at('many'), null),
    dir('a link to a directory outside of the upload roots', at('outside'), 'source_forbidden'),
    dir('a file as a directory', at('tree/file'), 'prepare_failed'),
    dir('the root of the host', '/', 'source_forbidden'),
  ];
}
