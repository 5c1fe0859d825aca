import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { ShellResult, ToolProcess } from '@floe-rl/sandbox';

/** A shell on this machine without a sandbox, which counts its commands. `change` may falsify their output. */
export function localShell(change: (output: string, command: string) => string = (output) => output) {
  const commands: string[] = [];
  const shell: Pick<ToolProcess<ShellResult>, 'run'> = {
    async run(command, { maxOutputBytes = 1 << 24 }) {
      commands.push(command);
      const { stdout, stderr, status, signal } = spawnSync('sh', ['-c', command], {
        encoding: 'utf8',
        maxBuffer: 1 << 28,
      });
      const text = change(stdout, command);
      return {
        ...{ stdout: text.slice(0, maxOutputBytes), stderr, exitCode: status, signal, timedOut: false, isFirst: false },
        ...{ droppedBytes: Math.max(0, text.length - maxOutputBytes), processEnd: null, wallMs: 0 },
      };
    },
  };
  return { shell: shell as ToolProcess<ShellResult>, commands };
}

/** Makes a folder with these files. */
export function folderOf(files: Readonly<Record<string, string>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'floe-code-'));
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(join(folder, dirname(path)), { recursive: true });
    writeFileSync(join(folder, path), text);
  }
  return folder;
}
