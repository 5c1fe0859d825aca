import { readdirSync, readFileSync } from 'node:fs';

/** Pids of live processes whose environment or command line holds `marker`. Zombies have neither. */
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
        // Gone, or not ours to read.
        return false;
      }
    });
}
