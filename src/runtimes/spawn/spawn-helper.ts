import { type ChildProcess, spawn } from 'node:child_process';
import { systemClock } from '../../core/clock.ts';
import {
  cgroupHit,
  isAlive,
  processesOfGroup,
  processesWithEnvironment,
  readProcess,
  readProcessTable,
} from '../processes/process-table.ts';
import { CappedOutput } from './capped-output.ts';
import { type LimitHit, ProcessWatch } from './process-watch.ts';
import type { HelperReply, HelperRequest } from './protocol.ts';

/*
 * The program of the spawn helper. It owns every child process of a gateway, and outlives the gateway only for as long
 * as it takes to kill them.
 */

/** A first line longer than this is not a line that anybody waits for. */
const MAX_LINE_BYTES = 64 * 1024;
/** Between two looks at processes that have been killed; they are gone within one or two. */
const GONE_POLL_MS = 2;
/** One that hangs in the kernel may take for ever: looking reads the table of all processes. */
const MAX_GONE_POLL_MS = 1_000;
/** Output that a command leaves in a pipe has arrived by then; who still holds the pipe is nobody that the helper knows. */
const OUTPUT_GRACE_MS = 250;
/** Between two reports that there is output. */
const OUTPUT_TELL_MS = 1_000;

type SpawnMessage = Extract<HelperRequest, { type: 'spawn' }>;

/** A command's processes: its process group, those that carry its mark, and those in its control group. */
type Running = { readonly pid: number; readonly marker: string | undefined; readonly cgroups: readonly string[] };

const running = new Map<number, Running>();
const watch = new ProcessWatch(systemClock);

/** What runs in a sandbox, and the sandbox itself, must not depend on the umask of who started the node: 077 would shut them out. */
process.umask(0o022);
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
      if (entry === undefined) break;
      killGroup(entry.pid);
      for (const member of membersOf(entry)) kill(member);
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
  const entry = { pid, marker: request.marker, cgroups: request.limits?.cgroups ?? [] };
  running.set(id, entry);
  reply({ type: 'started', id, pid });
  feed(child, request.stdin);
  follow(id, entry, child, request);
}

function feed(child: ChildProcess, stdin: Buffer | 'hold' | undefined): void {
  // A process that ends without reading its input is no error.
  child.stdin?.on('error', () => {});
  if (stdin !== undefined && stdin !== 'hold') child.stdin?.end(stdin);
}

function follow(id: number, entry: Running, child: ChildProcess, request: SpawnMessage['request']): void {
  const { pid, cgroups } = entry;
  const stdout = new CappedOutput(request.maxOutputBytes);
  const stderr = new CappedOutput(request.maxOutputBytes);
  const onFirstLine = firstLineOf((line) => reply({ type: 'line', id, line }));
  const onOutput = request.tellOutput ? outputTeller(id) : () => {};
  child.stdout?.on('data', (chunk: Buffer) => {
    onFirstLine(chunk);
    onOutput();
    stdout.push(chunk);
  });
  child.stderr?.on('data', (chunk: Buffer) => {
    onOutput();
    stderr.push(chunk);
  });
  let killedBy: LimitHit | null = null;
  if (request.limits !== undefined) {
    watch.add(pid, request.limits, (hit) => {
      killedBy = hit;
      killGroup(pid);
      for (const member of membersOf(entry)) kill(member);
    });
  }
  const exited = new Promise<void>((resolve) => {
    child.once('exit', (exitCode) => {
      watch.remove(pid);
      // A command that gave up because of its limit has been ended by it, before anybody looked.
      if (exitCode !== 0) killedBy ??= cgroupHit(cgroups);
      endRest(entry, () => {
        resolve();
        systemClock.schedule(OUTPUT_GRACE_MS, () => {
          child.stdout?.destroy();
          child.stderr?.destroy();
        });
      });
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

function outputTeller(id: number): () => void {
  let toldMs = Number.NEGATIVE_INFINITY;
  return () => {
    const nowMs = systemClock.monotonicMs();
    if (nowMs - toldMs < OUTPUT_TELL_MS) return;
    toldMs = nowMs;
    reply({ type: 'output', id });
  };
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

/** Live processes of a command that may have left its process group. */
function membersOf({ marker, cgroups }: Running): number[] {
  const marked = marker === undefined ? [] : processesWithEnvironment(marker);
  return [...marked, ...cgroups.flatMap(processesOfGroup)].filter((pid) => isAlive(readProcess(pid)));
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

/**
 * Kills what a command left behind and waits until nothing of it lives. Its leader is reaped by now. Looks again, since a
 * process may be forking while it is looked for.
 */
function endRest(entry: Running, done: () => void, pollMs = GONE_POLL_MS): void {
  killGroup(entry.pid);
  const members = membersOf(entry);
  for (const member of members) kill(member);
  if (members.length === 0 && groupIsGone(entry.pid)) done();
  else systemClock.schedule(pollMs, () => endRest(entry, done, Math.min(2 * pollMs, MAX_GONE_POLL_MS)));
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
  for (const entry of running.values()) {
    killGroup(entry.pid);
    for (const member of membersOf(entry)) kill(member);
  }
  process.exit(0);
}

function reply(message: HelperReply): void {
  if (process.connected) process.send?.(message);
}
