import { closeSync, readdirSync, readFileSync } from 'node:fs';

/** Number of stderr, the last of the standard descriptors. */
const STDERR = 2;
/** Flag of a descriptor that the kernel closes when the process starts another program. `node:fs` does not export it. */
const O_CLOEXEC = 0o2000000;

/**
 * Closes the descriptors above stderr that this process would pass on to the programs that it starts. A launcher, such as a shell, a CI
 * runner or `flock`, may have left them open, and they may refer to files that no sandbox may read. Descriptors that Node itself opened
 * stay open, because the kernel does not pass them on. Does nothing on a system without /proc.
 */
export function closeInheritedDescriptors(): void {
  for (const descriptor of openDescriptors()) {
    if (descriptor > STDERR && isPassedOn(descriptor)) closeSync(descriptor);
  }
}

function openDescriptors(): number[] {
  try {
    return readdirSync('/proc/self/fd').map(Number);
  } catch {
    // The system has no /proc.
    return [];
  }
}

/** Whether the programs that this process starts inherit the descriptor. Returns false when the descriptor has already been closed. */
function isPassedOn(descriptor: number): boolean {
  try {
    const info = readFileSync(`/proc/self/fdinfo/${descriptor}`, 'latin1');
    const flags = Number.parseInt(/^flags:\s*([0-7]+)$/m.exec(info)?.[1] ?? '0', 8);
    return (flags & O_CLOEXEC) === 0;
  } catch {
    return false;
  }
}
