import { asFloeError, raceAbort, wellFormed } from '@floe-rl/core';
import type { DirectCall } from '@floe-rl/core/protocol';
import { labelCall } from '../../dialects/call-kinds/label.ts';
import { normalised } from '../../dialects/conversation.ts';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import { openaiChat } from '../../dialects/openai_chat/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import type { Call } from './call.ts';
import type { ProxySession } from './session.ts';

/** All direct calls have the same digest. None of them is a retry of another, and the session keeps only the last of several equal requests. */
const IDENTITY = { digest: 'direct', isRetry: false };

/**
 * Makes a model call. It is recorded like a call that arrives over HTTP in the dialect `openai_chat`. Rejects with the error of the call or
 * with the reason of `signal`.
 */
export async function callDirectly(
  session: ProxySession,
  direct: DirectCall,
  signal: AbortSignal,
): Promise<Completion> {
  session.requests++;
  return awaitCall(beginCall(session, () => requestOf(session, direct)).call, signal);
}

/** Waits for a call. Rejects with its error or with the reason of `signal`. After an abort the call no longer has a client. */
export async function awaitCall(call: Call, signal: AbortSignal): Promise<Completion> {
  call.attach();
  let isDelivered = false;
  try {
    const completion = await raceAbort(call.outcome, signal);
    isDelivered = true;
    return completion;
  } finally {
    call.detach(isDelivered);
  }
}

/** Begins the call of a request, which `parse` returns. A refusal is an event of the session, as for a request over HTTP. */
export function beginCall(
  session: ProxySession,
  parse: () => CanonicalRequest,
): { readonly call: Call; readonly request: CanonicalRequest } {
  try {
    const request = parse();
    return { call: session.admission.begin(IDENTITY, openaiChat, request), request };
  } catch (thrown) {
    const error = asFloeError(thrown);
    session.failures.requestRefused(error, true);
    throw error;
  }
}

function requestOf(session: ProxySession, direct: DirectCall): CanonicalRequest {
  const { previousCompletionId, toolChoice, maxTokens, enginePool } = direct;
  const { messages, adjusted } = normalised(direct.messages);
  const tools = wellFormed(direct.tools ?? []);
  const headers = {
    'x-floe-thread': direct.thread,
    ...(direct.isTrained ? {} : { 'x-floe-kind': 'untrained' }),
    ...(enginePool === null ? {} : { 'x-floe-engine-pool': enginePool }),
  };
  return {
    model: session.spec.modelName,
    messages,
    tools,
    ...(direct.tools === null ? { inheritsTools: true as const } : {}),
    toolForms: new Map(),
    toolChoice,
    parallelToolCalls: null,
    samplingAsked: maxTokens === null ? {} : { max_tokens: maxTokens },
    stream: false,
    streamUsage: false,
    previousCompletionId,
    adjusted,
    ...labelCall('floe', { headers, messages, tools, responseFormat: undefined }),
  };
}
