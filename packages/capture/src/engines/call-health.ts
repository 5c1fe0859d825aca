import { FloeError } from '@floe-rl/core';

/** Counts the calls in flight on one engine, and derives the engine's health from the last call that ended. */
export class CallHealth {
  private readonly engineId: string;
  private callCount = 0;
  private isHealthy = true;

  constructor(engineId: string) {
    this.engineId = engineId;
  }

  get inflight(): number {
    return this.callCount;
  }

  get healthy(): boolean {
    return this.isHealthy;
  }

  /**
   * Runs `work` as one call on the engine. Rejects with the error of `work`. When that error concerns the engine as a whole and carries no
   * engine id, this engine's id is added to it.
   */
  async track<T>(work: () => Promise<T>): Promise<T> {
    this.callCount++;
    try {
      const result = await work();
      this.isHealthy = true;
      return result;
    } catch (error) {
      if (!FloeError.is(error)) throw error;
      this.isHealthy = !isEngineFault(error);
      throw this.withEngineId(error);
    } finally {
      this.callCount--;
    }
  }

  private withEngineId(error: FloeError): FloeError {
    if (!isEngineFault(error) || error.details.engine_id !== undefined) return error;
    const details = { ...error.details, engine_id: this.engineId };
    return new FloeError(error.code, `engine ${this.engineId}: ${error.message}`, details, error.cause);
  }
}

/** Whether the error shows a problem of the engine itself, and not only of the one call that failed. */
function isEngineFault({ code }: FloeError): boolean {
  return code === 'engine_unavailable' || code === 'engine_error';
}
