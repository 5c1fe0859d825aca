import { type ChildProcess, spawn } from 'node:child_process';
import { systemClock } from '../core/clock.ts';
import { CappedOutput } from './capped-output.ts';
import { cgroupHit, isAlive, processesWithEnvironment, readProcessTable } from './process-table.ts';
import { type LimitHit, ProcessWatch } from './process-watch.ts';
import type { HelperReply, HelperRequest } from './spawn-protocol.ts';

/*
 * The program of the spawn helper. It owns every child process of a gateway, and outlives the gateway only for as long
 * as it takes to kill them.
 */

/** A first line longer than this is not a line that anybody waits for. */
const MAX_LINE_BYTES = 64 * 1024;
/** Between two looks at a process group that has been killed; it is empty within one or two. */
const GROUP_POLL_MS = 2;

type SpawnMessage = Extract<HelperRequest, { type: 'spawn' }>;

const running = new Map<number, { readonly pid: number; readonly marker: string | undefined }>();
const watch = new ProcessWatch(systemClock);

process.on('message', (message) => receive(message as HelperRequest));
process.on('disconnect', () => endAll());
// A terminal's Ctrl-C is the gateway's to handle; the helper ends when the gateway does.
process.on('SIGINT', () => {});
process.on('SIGTERM', () => endAll());
reply({ type: 'ready' });

function receive(message: HelperRequest): void {
  switch (message.type) {
    case 'spawn':
      start(message);
      break;
    case 'kill': {
      const entry = running.get(message.id);
      if (entry !== undefined) killGroup(entry.pid);
      break;
    }
    case 'close':
      endAll();
  }
}

function start({ id, request }: SpawnMessage): void {
  const [program, ...args] = request.argv;
  if (program === undefined) {
    reply({ type: 'failed', id, message: 'nothing to run' });
    return;
  }
  let child: ChildProcess;
  try {
    child = spawn(program, args, {
      detached: true,
      cwd: request.cwd,
      env: { ...request.env },
      stdio: [request.stdin === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
    });
  } catch (cause) {
    reply({ type: 'failed', id, message: `cannot start ${program}: ${(cause as Error).message}` });
    return;
  }
  const { pid } = child;
  if (pid === undefined) {
    child.once('error', (cause) => reply({ type: 'failed', id, message: `cannot start ${program}: ${cause.message}` }));
    return;
  }
  child.on('error', () => {});
  running.set(id, { pid, marker: request.marker });
  reply({ type: 'started', id, pid });
  feed(child, request.stdin);
  follow(id, pid, child, request);
}

function feed(child: ChildProcess, stdin: Buffer | 'hold' | undefined): void {
  // A process that ends without reading its input is no error.
  child.stdin?.on('error', () => {});
  if (stdin !== undefined && stdin !== 'hold') child.stdin?.end(stdin);
}

function follow(id: number, pid: number, child: ChildProcess, request: SpawnMessage['request']): void {
  const stdout = new CappedOutput(request.maxOutputBytes);
  const stderr = new CappedOutput(request.maxOutputBytes);
  const onFirstLine = firstLineOf((line) => reply({ type: 'line', id, line }));
  child.stdout?.on('data', (chunk: Buffer) => {
    onFirstLine(chunk);
    stdout.push(chunk);
  });
  child.stderr?.on('data', (chunk: Buffer) => stderr.push(chunk));
  let killedBy: LimitHit | null = null;
  if (request.limits !== undefined) {
    watch.add(pid, request.limits, (hit) => {
      killedBy = hit;
      killAll(pid, request.marker);
    });
  }
  const exited = new Promise<void>((resolve) => {
    child.once('exit', (exitCode) => {
      watch.remove(pid);
      // A command that gave up because of its limit has been ended by it, before anybody looked.
      if (exitCode !== 0) killedBy ??= cgroupHit(request.limits?.cgroups ?? []);
      killAll(pid, request.marker);
      whenGroupIsGone(pid, resolve);
    });
  });
  child.once('close', (exitCode, signal) => {
    exited.then(() => {
      running.delete(id);
      const droppedBytes = stdout.droppedBytes + stderr.droppedBytes;
      const result = { exitCode, signal, stdout: stdout.bytes(), stderr: stderr.bytes(), droppedBytes, killedBy };
      reply({ type: 'done', id, result });
    });
  });
}

function firstLineOf(found: (line: string) => void): (chunk: Buffer) => void {
  let seen: Buffer | null = Buffer.alloc(0);
  return (chunk) => {
    if (seen === null) return;
    seen = Buffer.concat([seen, chunk]);
    const end = seen.indexOf('\n');
    if (end >= 0) found(seen.toString('utf8', 0, end));
    if (end >= 0 || seen.length > MAX_LINE_BYTES) seen = null;
  };
}

function killAll(pid: number, marker: string | undefined): void {
  killGroup(pid);
  if (marker === undefined) return;
  for (const marked of processesWithEnvironment(marker)) kill(marked);
}

function killGroup(pid: number): void {
  kill(-pid);
}

function kill(target: number): void {
  try {
    process.kill(target, 'SIGKILL');
  } catch {
    // Gone already, which is what was wanted.
  }
}

/** Waits until no live process of the group is left. Its leader is reaped, so only what it left behind can be there. */
function whenGroupIsGone(pid: number, resolve: () => void): void {
  if (groupIsGone(pid)) resolve();
  else systemClock.schedule(GROUP_POLL_MS, () => whenGroupIsGone(pid, resolve));
}

function groupIsGone(pid: number): boolean {
  try {
    process.kill(-pid, 0);
  } catch {
    return true;
  }
  return ![...readProcessTable().values()].some((row) => row.groupId === pid && isAlive(row));
}

function endAll(): void {
  for (const { pid, marker } of running.values()) killAll(pid, marker);
  process.exit(0);
}

function reply(message: HelperReply): void {
  if (process.connected) process.send?.(message);
}
