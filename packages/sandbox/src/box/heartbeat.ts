import { type Clock, scheduleAfterInput } from '@floe-rl/core';
import type { BoxConnection } from './connection.ts';

/** Interval in milliseconds of the checks for a sign of life from a box server with a pending request. */
const CHECK_MS = 3_000;
/** After this many checks in a row without a sign of life, the box server counts as stopped. */
const MAX_SILENT_CHECKS = 5;

/**
 * Detects that a box server with pending requests is stopped. It counts checks instead of time, so that a box server is not taken for stopped
 * when the gateway itself was suspended.
 */
export class Heartbeat {
  private readonly clock: Clock;
  private readonly connection: BoxConnection;
  private readonly onSilent: (seconds: number) => void;
  private awaited = 0;
  private isAsked = false;
  private seenBytes = 0;
  private silentChecks = 0;
  private cancel = (): void => {};

  /** `onSilent` is called with the approximate length of the silence in seconds. */
  constructor(clock: Clock, connection: BoxConnection, onSilent: (seconds: number) => void) {
    this.clock = clock;
    this.connection = connection;
    this.onSilent = onSilent;
  }

  /** Checks the box server until `answer` settles, and settles as it does. */
  async during<T>(answer: Promise<T>): Promise<T> {
    this.awaited += 1;
    if (this.awaited === 1) {
      this.silentChecks = 0;
      this.seenBytes = this.connection.receivedBytes;
      this.schedule();
    }
    try {
      return await answer;
    } finally {
      this.awaited -= 1;
      if (this.awaited === 0) this.cancel();
    }
  }

  private schedule(): void {
    this.cancel = scheduleAfterInput(this.clock, CHECK_MS, () => this.check());
  }

  private check(): void {
    const { receivedBytes, hasEnded } = this.connection;
    if (hasEnded) return;
    // Any byte is a sign of life, because a long answer delays the answer to the ping. The connection limits the time of each message.
    if (receivedBytes !== this.seenBytes) this.silentChecks = 0;
    else if (this.isAsked) this.silentChecks += 1;
    this.seenBytes = receivedBytes;
    if (this.silentChecks >= MAX_SILENT_CHECKS) {
      this.onSilent((CHECK_MS * this.silentChecks) / 1000);
      return;
    }
    if (!this.isAsked) void this.ask();
    this.schedule();
  }

  private async ask(): Promise<void> {
    this.isAsked = true;
    await this.connection.askTools({ type: 'tool_ping' }).catch(() => {});
    this.isAsked = false;
  }
}
