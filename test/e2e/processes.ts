import { readdirSync, readFileSync } from 'node:fs';

/**
 * Returns the pids of the live processes whose environment or command line contains `marker`. Zombies are left out, since they have
 * neither.
 */
export function processesOf(marker: string): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0 && pid !== process.pid)
    .filter((pid) => {
      try {
        return [`/proc/${pid}/environ`, `/proc/${pid}/cmdline`].some((path) =>
          readFileSync(path, 'latin1').includes(marker),
        );
      } catch {
        // The process has ended, or this user may not read it.
        return false;
      }
    });
}

/** Returns a shell command that ignores signals and starts processes that leave its process group and keep its output open. */
export function stubbornCommand(marker: string): string {
  return `trap "" TERM HUP INT; export FLOE_MARK=${marker}; (setsid sh -c "sleep 600 & sleep 600" &); sleep 600`;
}
