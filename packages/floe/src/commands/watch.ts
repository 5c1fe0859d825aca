import type { WriteStream } from 'node:tty';
import type { FloeClient } from '@floe-rl/client';
import { asFloeError, sleep, systemClock } from '@floe-rl/core';
import type { RolloutEvent, SessionView } from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { interruptible } from './lifetime.ts';
import { type LiveLines, showLive } from './live.ts';
import { formatTable, paint, printJson, printLine, printNote, visible } from './print.ts';
import { terminal } from './screen.ts';
import { TaskBoard } from './task-board.ts';

/** Maximum number of errors that `floe watch` prints. The sessions of a group often fail for the same reason. */
const MAX_SHOWN_ERRORS = 5;

/** Time in milliseconds to wait for further events after a task has ended. */
const LAST_EVENTS_MS = 500;

export function registerWatch(program: Command): void {
  withConnectionOptions(
    program.command('watch <task>').description('print the progress of a task until it ends'),
  ).action(async (task: string, options: ConnectionOptions) => {
    await withClient(options, (client) => watchTask(client, task, options.json === true));
  });
}

/**
 * Shows the progress of a task until it ends, then prints a table of the sessions. A terminal shows counts, rates and running sessions in its
 * window; elsewhere each state change of a session is a line. Ctrl-C ends the screen, and the task continues.
 */
export async function watchTask(client: FloeClient, taskId: string, asJson: boolean): Promise<void> {
  const output = asJson ? null : terminal();
  if (output === null) await printProgress(client, taskId, asJson);
  else if (!(await showProgress(output, client, taskId))) {
    printNote(`The task continues; show it with floe watch ${taskId}, end it with floe cancel ${taskId}.`);
    return;
  }
  await printEnd(client, taskId, asJson);
}

/** Shows the progress in the window of a terminal. Resolves with `false` when Ctrl-C ended it before the task did. */
async function showProgress(output: WriteStream, client: FloeClient, taskId: string): Promise<boolean> {
  const board = new TaskBoard(taskId);
  const shown = await interruptible(async (signal) => {
    const read = async (): Promise<LiveLines> => {
      const sessions = await client.sessions(taskId, signal);
      board.update(sessions, systemClock.monotonicMs());
      const haveEnded = sessions.every(({ summary }) => summary !== null);
      // A task whose sessions have ended may get further sessions, as refill.
      const isOver = haveEnded && (await client.task(taskId, signal)).status !== 'running';
      return { lines: board.lines(systemClock.nowMs()), isOver };
    };
    await showLive(output, read, signal);
    return true;
  });
  return shown === true;
}

async function printProgress(client: FloeClient, taskId: string, asJson: boolean): Promise<void> {
  const stop = new AbortController();
  const printing = printEvents(client, taskId, asJson, stop.signal);
  try {
    // Events only show the progress. Events from before the stream was open are never sent, so the event for the end of the task may be
    // missing.
    await client.endedTask(taskId);
    await Promise.race([printing, sleep(systemClock, LAST_EVENTS_MS)]);
  } finally {
    stop.abort();
    await printing;
  }
}

async function printEnd(client: FloeClient, taskId: string, asJson: boolean): Promise<void> {
  const sessions = await client.sessions(taskId);
  const failed = sessions.filter((session) => session.summary?.error);
  if (asJson) printJson({ task_id: taskId, sessions });
  else {
    printLine(sessionTable(sessions));
    for (const { session_id, summary } of failed.slice(0, MAX_SHOWN_ERRORS)) {
      printLine(`${paint('red', session_id)} ${summary?.error?.code}: ${visible(summary?.error?.message ?? '')}`);
    }
    if (failed.length > MAX_SHOWN_ERRORS)
      printLine(`and ${failed.length - MAX_SHOWN_ERRORS} more; show one with floe trace <session>`);
  }
  if (failed.length > 0) process.exitCode = 1;
}

/** Prints the events of a task until it is completed, `signal` aborts or the stream ends. Never rejects, because events can be missed anyway. */
async function printEvents(client: FloeClient, taskId: string, asJson: boolean, signal: AbortSignal): Promise<void> {
  const seen = new Map<string, string>();
  try {
    for await (const event of client.events(signal)) {
      if (event.task_id !== taskId) continue;
      if (asJson) printJson(event);
      else printEvent(event, seen);
      if (event.type === 'task.completed') return;
    }
  } catch (error) {
    if (!signal.aborted) printNote(`The progress is no longer shown: ${asFloeError(error).message}`);
  }
}

function printEvent(event: RolloutEvent, seen: Map<string, string>): void {
  if (event.type !== 'session.state_changed') return;
  const state = `${event.status} ${event.turns}`;
  if (seen.get(event.session_id) === state) return;
  seen.set(event.session_id, state);
  const progress = event.turns > 0 ? `, ${event.turns} turns, ${event.sampled_tokens} tokens` : '';
  const end = event.outcome === null ? '' : `: ${event.outcome}, reward ${event.reward ?? 'none'}`;
  printLine(`${paint('dim', `#${event.sample_index}`)} ${event.status}${progress}${end}`);
}

function sessionTable(sessions: readonly SessionView[]): string {
  const header = [
    'sample',
    'session',
    'status',
    'outcome',
    'reward',
    'turns',
    'tokens',
    'traces',
    'trainable',
    'total s',
  ];
  return formatTable(
    header,
    sessions.map((session) => [
      session.sample_index,
      session.session_id,
      session.status,
      session.summary?.outcome ?? '',
      session.summary?.reward ?? null,
      session.turns,
      session.sampled_tokens,
      session.summary?.trace_count ?? null,
      session.summary?.trainable_tokens ?? null,
      session.summary === null ? null : Number((session.summary.timing.total_ms / 1000).toFixed(2)),
    ]),
  );
}
