import type { RolloutEvent, SessionStatus } from '../../schema/index.ts';
import { paint } from '../print.ts';

const STAGES: readonly SessionStatus[] = ['QUEUED', 'LEASED', 'INIT', 'READY', 'RUNNING', 'POSTRUN'];

/**
 * Live progress on stderr: on a terminal one line that is rewritten, with a line above it for each session that ends;
 * elsewhere only the latter.
 */
export class DemoProgress {
  private readonly total: number;
  private readonly nameOf: (taskId: string) => string;
  private readonly states = new Map<string, RolloutEvent & { type: 'session.state_changed' }>();
  private readonly live = process.stderr.isTTY === true;
  private ended = 0;

  constructor(total: number, nameOf: (taskId: string) => string) {
    this.total = total;
    this.nameOf = nameOf;
  }

  get done(): boolean {
    return this.ended >= this.total;
  }

  see(event: RolloutEvent): void {
    if (event.type !== 'session.state_changed') return;
    const before = this.states.get(event.session_id);
    if (before?.outcome) return;
    this.states.set(event.session_id, event);
    if (event.outcome !== null) {
      this.ended++;
      this.write(`  ${this.mark(event)} ${this.nameOf(event.task_id)} #${event.sample_index}: ${this.gist(event)}\n`);
    }
    if (this.live && !this.done) this.write(this.statusLine());
  }

  private write(text: string): void {
    process.stderr.write(this.live ? `\r\x1b[K${text}` : text);
  }

  private mark(event: RolloutEvent & { type: 'session.state_changed' }): string {
    if (event.reward === null) return paint('yellow', '?');
    return event.reward > 0 ? paint('green', '✓') : paint('red', '✗');
  }

  private gist(event: RolloutEvent & { type: 'session.state_changed' }): string {
    return `${event.outcome}, reward ${event.reward ?? 'none'}, ${event.turns} turns, ${event.sampled_tokens} tokens`;
  }

  private statusLine(): string {
    const counts = STAGES.map(
      (stage) => [stage, [...this.states.values()].filter((event) => event.status === stage).length] as const,
    );
    const shown = counts.filter(([, count]) => count > 0).map(([stage, count]) => `${stage.toLowerCase()} ${count}`);
    return paint('dim', `  ${this.ended}/${this.total} done${shown.length > 0 ? `, ${shown.join(', ')}` : ''}`);
  }
}
