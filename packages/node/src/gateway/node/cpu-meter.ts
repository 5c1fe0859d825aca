/**
 * Divides the CPU time of this process among its sessions. Each call of {@link take} returns all the time that no earlier call returned, so
 * the sums are exact. The share of a single session is an estimate, because other sessions run in between.
 */
export class CpuMeter {
  private takenUs = usedUs();

  /** Returns the CPU time since the last call, or since the meter was made, in microseconds. */
  take(): number {
    const now = usedUs();
    const us = now - this.takenUs;
    this.takenUs = now;
    return us;
  }
}

function usedUs(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}
