import type { FinishReason, StopCause, Usage, VersionSpan } from '../../schema/index.ts';
import type { PromptIds, SampledTokens } from '../engine.ts';
import { joinExperts } from './experts.ts';

/** Prompt and what was sampled of the reply before, as one. */
export function wholePrompt(prompt: PromptIds, begun: SampledTokens | null): Int32Array {
  return begun === null ? prompt.ids : joined(prompt.ids, begun.responseIds);
}

type Sampled = SampledTokens & {
  readonly promptIds: Int32Array;
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
};

/** `reply`, which was prompted with `prompt` and `begun`, as one reply to `prompt`. */
export function joinReply(prompt: PromptIds, begun: SampledTokens, reply: Sampled): Sampled {
  const count = begun.responseIds.length;
  const logprobs = new Float32Array(count + reply.responseLogprobs.length);
  logprobs.set(begun.responseLogprobs);
  logprobs.set(reply.responseLogprobs, count);
  const responseIds = joined(begun.responseIds, reply.responseIds);
  const later = reply.versionSpans.map(({ version, start, end }) => ({
    version,
    start: start + count,
    end: end + count,
  }));
  return {
    promptIds: prompt.ids,
    responseIds,
    responseLogprobs: logprobs,
    versionSpans: joinSpans([...begun.versionSpans, ...later]),
    routedExperts: joinExperts(begun.routedExperts, reply.routedExperts),
    finishReason: reply.finishReason,
    stop: reply.stop,
    usage: {
      prompt_tokens: prompt.ids.length,
      completion_tokens: responseIds.length,
      // The part that was begun is no part of the prompt that a client counts.
      cached_tokens: reply.usage.cached_tokens === null ? null : Math.min(reply.usage.cached_tokens, prompt.ids.length),
    },
  };
}

/** Neighbours of one version as one span. */
function joinSpans(spans: readonly VersionSpan[]): VersionSpan[] {
  const out: VersionSpan[] = [];
  for (const span of spans) {
    const last = out.at(-1);
    if (last !== undefined && last.version === span.version && last.end === span.start) last.end = span.end;
    else if (span.end > span.start) out.push({ ...span });
  }
  return out;
}

function joined(a: Int32Array, b: Int32Array): Int32Array {
  const out = new Int32Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}
