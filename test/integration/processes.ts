import { readdirSync, readFileSync } from 'node:fs';

/**
 * Returns the pids of the live processes whose environment or command line contains `marker`. Zombies are not included, since they have
 * neither environment nor command line.
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
        // The process has ended, or the user of the test may not read its environment.
        return false;
      }
    });
}

/**
 * Returns a shell command that is hard to stop: it ignores signals and starts processes that leave its process group and keep its output
 * open.
 */
export function stubbornCommand(marker: string): string {
  return `trap "" TERM HUP INT; export FLOE_MARK=${marker}; (setsid sh -c "sleep 600 & sleep 600" &); sleep 600`;
}
