import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import { MAX_LOGIT } from '../scenario.ts';
import type { LogitTable, WeightStore } from '../weights.ts';

const logitsSchema = z.record(z.string(), z.record(z.string(), z.array(z.number().min(-MAX_LOGIT).max(MAX_LOGIT))));

/** The simulator's own short form: a whole update in one call. */
export const updateSchema = z.strictObject({ version: z.string().min(1), logits: logitsSchema.optional() });

const initSchema = z.object({ init_info: z.record(z.string(), z.unknown()) });
const partSchema = z.object({ update_info: z.looseObject({ logits: logitsSchema.optional() }) });
const finishSchema = z.object({ weight_version: z.string().min(1).nullish() });

/**
 * vLLM's weight transfer in four phases: init once, then start, any number of parts, finish. What the parts bring is put
 * in effect at the end. A part's `update_info` may hold `logits`; whatever else a real one would hold is left alone.
 */
export class WeightTransfer {
  private readonly weights: WeightStore;
  private ready = false;
  private parts: LogitTable[] | null = null;

  constructor(weights: WeightStore) {
    this.weights = weights;
  }

  init(body: unknown): void {
    parseAs(initSchema, body, 'init_weight_transfer_engine');
    this.ready = true;
  }

  /** Throws `bad_request` out of order. */
  start(): void {
    if (!this.ready) throw new FloeError('bad_request', 'Weight transfer is not initialized.');
    if (this.parts !== null) throw new FloeError('bad_request', 'A weight update is under way.');
    this.parts = [];
  }

  /** A part of the update, or the short form of all of it. Throws `bad_request` out of order. */
  update(body: unknown): void {
    if (typeof body === 'object' && body !== null && !('update_info' in body)) {
      const { version, logits } = parseAs(updateSchema, body, 'weight update');
      this.weights.update(version, logits);
      return;
    }
    const { update_info: info } = parseAs(partSchema, body, 'weight update');
    this.underWay().push(info.logits ?? {});
  }

  /**
   * Puts the update in effect. Without a name the server goes on telling the old one, although the weights are others.
   * Throws `bad_request` out of order, and as {@link WeightStore.update}; then the update is over and nothing has changed.
   */
  finish(body: unknown): void {
    const { weight_version: version } = parseAs(finishSchema, body, 'finish_weight_update');
    const logits = merged(this.underWay());
    this.parts = null;
    if (version === undefined || version === null) this.weights.swap(logits);
    else this.weights.update(version, logits);
  }

  private underWay(): LogitTable[] {
    if (this.parts === null) throw new FloeError('bad_request', 'No weight update is under way.');
    return this.parts;
  }
}

function merged(parts: readonly LogitTable[]): LogitTable {
  const table: Record<string, LogitTable[string]> = {};
  for (const part of parts) {
    for (const [scenario, choices] of Object.entries(part)) table[scenario] = { ...table[scenario], ...choices };
  }
  return table;
}
