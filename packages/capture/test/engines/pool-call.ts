import type { Engine, GenerateReply, GenerateRequest } from '../../src/engines/engine.ts';

/**
 * Samples a reply as a pool does: asks the engine for its policy version and sends the call with it. A version that the request already has
 * is kept.
 */
export async function generateAsPool(
  engine: Engine,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<GenerateReply> {
  const policyVersion = request.policyVersion ?? (await engine.policyVersion());
  return engine.generate({ ...request, policyVersion }, signal);
}
