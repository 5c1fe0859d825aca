import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

/**
 * Difference in niceness between the event loop of a gateway and the processes of its sandboxes. When two processes need the same processor,
 * ten steps less niceness give a process about nine times as much time.
 */
const NICENESS_STEPS = 10;
const MIN_NICENESS = -20;
const MAX_NICENESS = 19;

/**
 * File with the niceness of this terminal session's process group in the kernel's scheduler (autogroup). Where the kernel makes such groups,
 * it divides the processors among the groups first. The niceness of a process then counts only within its group.
 */
const SESSION_GROUP = '/proc/self/autogroup';

/** The niceness of this process at its start. */
const inherited = getPriority();

/**
 * Raises the scheduling priority of this process, so that the calls of all sessions continue when the processes of sandboxes use up the
 * processors. Only a process with the capability CAP_SYS_NICE may do that; for others nothing changes.
 */
export function raisePriority(): void {
  const niceness = Math.max(inherited - NICENESS_STEPS, MIN_NICENESS);
  try {
    setNiceness(niceness);
    raiseSessionGroup(niceness);
  } catch {
    // Without the capability, only the processes of sandboxes get another priority. Without the file, the kernel makes no such groups.
  }
}

/** Sets the niceness of the terminal session's group until this process exits. */
function raiseSessionGroup(niceness: number): void {
  // The file contains a line such as "/autogroup-4 nice 0".
  const before = readFileSync(SESSION_GROUP, 'utf8').trim().split(' ').at(-1) ?? '0';
  writeFileSync(SESSION_GROUP, String(niceness));
  process.once('exit', () => {
    try {
      writeFileSync(SESSION_GROUP, before);
    } catch {
      // Processes of the session that are still running keep the niceness.
    }
  });
}

/** Lowers the scheduling priority of this process, and of the processes that it starts from now on. */
export function lowerPriority(): void {
  setNiceness(Math.min(inherited + NICENESS_STEPS, MAX_NICENESS));
}

/**
 * Sets the niceness of all threads of this process. On Linux each thread has its own niceness, and the event loop waits for the garbage
 * collector's threads.
 */
function setNiceness(niceness: number): void {
  for (const thread of readdirSync('/proc/self/task')) setPriority(Number(thread), niceness);
}
