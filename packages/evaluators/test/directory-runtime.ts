import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import type { ExecRequest, ExecResult, Runtime } from '@floe-rl/sandbox';

export type DirectoryRuntime = Runtime & { readonly commands: readonly string[] };

/** Creates a runtime without isolation in a temporary directory. It runs real shells and real git. */
export async function directoryRuntime(): Promise<DirectoryRuntime> {
  const root = await mkdtemp(join(tmpdir(), 'floe-evaluator-'));
  const paths = {
    workdir: join(root, 'work'),
    home: join(root, 'home'),
    artifacts: join(root, 'artifacts'),
    logs: join(root, 'logs'),
  };
  for (const path of Object.values(paths)) await mkdir(path);
  const commands: string[] = [];
  const runtime: DirectoryRuntime = {
    backend: 'local',
    isolation: 'none',
    paths,
    proxyOrigin: '',
    mcpCommand: [],
    commands,
    async exec(request, signal) {
      commands.push(typeof request.command === 'string' ? request.command : request.command.join(' '));
      const cwd = request.cwd ?? paths.workdir;
      if (!(await stat(cwd).catch(() => null))?.isDirectory()) throw new FloeError('workdir_missing', cwd);
      return execute(request, cwd, paths.home, signal);
    },
    async writeFiles(files) {
      for (const file of files) {
        await mkdir(dirname(file.path), { recursive: true });
        await writeFile(file.path, file.content, { mode: file.mode ?? 0o644 });
      }
    },
    uploadDir: () => Promise.reject(new FloeError('unsupported', 'uploadDir')),
    async readFile(path, maxBytes) {
      const content = await readFile(path).catch(() => null);
      if (content !== null && content.length > maxBytes) throw new FloeError('runtime_failed', `${path} is too large`);
      return content;
    },
    openTools: () => Promise.reject(new FloeError('unsupported', 'openTools')),
    snapshot: () => Promise.reject(new FloeError('unsupported', 'snapshot')),
    restore: () => Promise.reject(new FloeError('unsupported', 'restore')),
    asRoot: () => runtime,
    stop: () => rm(root, { recursive: true, force: true }),
  };
  return runtime;
}

function execute(request: ExecRequest, cwd: string, home: string, signal: AbortSignal): Promise<ExecResult> {
  const command = typeof request.command === 'string' ? ['/bin/sh', '-c', request.command] : [...request.command];
  const env = { PATH: process.env.PATH ?? '', HOME: home, GIT_CONFIG_NOSYSTEM: '1', ...request.env };
  return new Promise((resolve, reject) => {
    const child = spawn(command[0] ?? '', command.slice(1), {
      cwd,
      env,
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    const kill = (): void => {
      if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL');
    };
    signal.addEventListener('abort', kill, { once: true });
    if (signal.aborted) kill();
    const out = { stdout: '', stderr: '' };
    child.stdout.on('data', (data: Buffer) => {
      out.stdout += data.toString();
    });
    child.stderr.on('data', (data: Buffer) => {
      out.stderr += data.toString();
    });
    child.stdin.on('error', () => {});
    child.stdin.end(request.stdin ?? '');
    child.once('error', reject);
    child.once('close', (exitCode, ended) => {
      signal.removeEventListener('abort', kill);
      if (signal.aborted) reject(signal.reason);
      else resolve({ exitCode, signal: ended, ...out, droppedBytes: 0, killedBy: null, wallMs: 0 });
    });
  });
}

/** Returns a runtime that loses the output of every command that contains `part`. */
export function losing<R extends Runtime>(runtime: R, part: string): R {
  const exec: Runtime['exec'] = async (request, signal) => {
    const result = await runtime.exec(request, signal);
    return [request.command].flat().join(' ').includes(part) ? { ...result, stdout: '', stderr: '' } : result;
  };
  return { ...runtime, exec };
}

/** Runs a shell script and returns its output. Rejects when the script fails. */
export async function shell(runtime: Runtime, script: string): Promise<string> {
  const result = await runtime.exec({ command: `set -e\n${script}` }, new AbortController().signal);
  if (result.exitCode !== 0) throw new Error(`script failed: ${result.stderr}`);
  return result.stdout;
}
