import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

/**
 * Difference in niceness between the event loop of a gateway and the processes of its sandboxes. The kernel gives a process of ten steps
 * less niceness about nine times the time of the other when both need the same processor.
 */
const NICENESS_STEPS = 10;
const MIN_NICENESS = -20;
const MAX_NICENESS = 19;

/**
 * File of the niceness of the kernel's group of all processes of this terminal session. Where the kernel makes such groups, it divides the
 * processors among the groups first, and the niceness of a process counts only within its group.
 */
const SESSION_GROUP = '/proc/self/autogroup';

/** The niceness with which this process was started. */
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
    // Without the capability, only the processes of sandboxes get another priority. Without the file, there are no such groups.
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
      // The processes of the session that still run keep the niceness.
    }
  });
}

/** Lowers the scheduling priority of this process, and of the processes that it starts from now on. */
export function lowerPriority(): void {
  setNiceness(Math.min(inherited + NICENESS_STEPS, MAX_NICENESS));
}

/** Sets the niceness of all threads of this process. It is a property of threads, and the event loop waits for those of the garbage collector. */
function setNiceness(niceness: number): void {
  for (const thread of readdirSync('/proc/self/task')) setPriority(Number(thread), niceness);
}
