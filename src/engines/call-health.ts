import { FloeError } from '../core/errors.ts';

/** Counts the calls of one engine, and judges its health by how the last of them ended. */
export class CallHealth {
  private readonly engineId: string;
  private running = 0;
  private good = true;

  constructor(engineId: string) {
    this.engineId = engineId;
  }

  get inflight(): number {
    return this.running;
  }

  get healthy(): boolean {
    return this.good;
  }

  /** Runs one call. Rejects as it does, with the engine's name in what a reply's reader threw. */
  async track<T>(work: () => Promise<T>): Promise<T> {
    this.running++;
    try {
      const result = await work();
      this.good = true;
      return result;
    } catch (error) {
      if (!FloeError.is(error)) throw error;
      this.good = !isFault(error);
      throw this.named(error);
    } finally {
      this.running--;
    }
  }

  private named(error: FloeError): FloeError {
    if (!isFault(error) || error.details.engine_id !== undefined) return error;
    const details = { ...error.details, engine_id: this.engineId };
    return new FloeError(error.code, `engine ${this.engineId}: ${error.message}`, details, error.cause);
  }
}

/** Whether it says something of the engine, and not only of the call. */
function isFault({ code }: FloeError): boolean {
  return code === 'engine_unavailable' || code === 'engine_error';
}
