import type { EnginePools } from '@floe-rl/capture';
import { samplingSchema } from '@floe-rl/core/schema';
import type { JudgeEngine } from '@floe-rl/evaluators';

/**
 * Returns the engines from which the evaluator `judge` samples: the pools of the node. The calls are not recorded. Their ids name the session,
 * so that all calls of a session go to one engine and its waiting calls count as progress.
 */
export function judgeEngine(engines: Pick<EnginePools, 'generate'>): JudgeEngine {
  return {
    async sample({ pool, messages, maxTokens, temperature, seed, callId, sessionId }, signal) {
      const request = {
        completionId: `${sessionId}.${callId}`,
        sessionId,
        pool,
        messageTexts: messages.map((message) => JSON.stringify(message)),
        tools: [],
        toolsText: '[]',
        toolChoice: null,
        parallelToolCalls: null,
        sampling: samplingSchema.parse({ temperature, max_tokens: maxTokens, seed }),
        maxTokens,
        stop: [],
        responseFormat: null,
        seed,
        prompt: null,
        resumeFrom: null,
        policyVersion: null,
      };
      const { reply, model, engineId } = await engines.generate(request, signal);
      const { prompt_tokens: promptTokens, completion_tokens: completionTokens } = reply.usage;
      return { text: reply.message.content ?? '', promptTokens, completionTokens, model, engineId };
    },
  };
}
