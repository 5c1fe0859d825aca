// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
// Defects that would put wrong tokens into training, or break another promise about model calls or leases, each a small change of one
// file.

/** A replacement in a source file. The text `find` must occur exactly once in the file. */
type Edit = { readonly find: string; readonly replace: string };

/**
 * A defect that is planted in `file` to check that a test detects it. `also` is a second edit of this file without which the defect would
 * not compile.
 */
export type Mutation = Edit & {
  readonly name: string;
  readonly file: string;
  readonly also?: Edit;
  /** Test folders and files that must detect the defect. By default, those of tokens, proxy and engines. */
  readonly tests?: readonly string[];
};

/**
 * Returns the text of a source file with a defect planted in it. Throws when a text to replace does not occur exactly once, for example
 * because the source was changed.
 */
export function withDefect(source: string, { name, find, replace, also }: Mutation): string {
  const edits = also === undefined ? [{ find, replace }] : [{ find, replace }, also];
  return edits.reduce((text, edit) => {
    const parts = text.split(edit.find);
    if (parts.length === 2) return parts.join(edit.replace);
    throw new Error(`mutation "${name}": its text occurs ${parts.length - 1} times in the file instead of once`);
  }, source);
}

export const MUTATIONS: readonly Mutation[] = [
  {
    name: 'capture: an edited turn is treated as the one that was sampled',
    file: 'src/proxy/prompt/prefix-index.ts',
    find: 'if (!sameTurn(returned, message, request.tools)) return false;',
    replace: '',
  },
  {
    name: 'capture: the position in a conversation ignores its tools',
    file: 'src/proxy/prompt/prefix-index.ts',
    find: 'thread.latestTools = request.toolsText;\n    let node = last?.turn.after ?? childOf(thread.byTools, request.toolsText);',
    replace: "thread.latestTools = '';\n    let node = last?.turn.after ?? childOf(thread.byTools, '');",
  },
  {
    name: 'capture: a reply that was cut is not closed',
    file: 'src/proxy/prompt/prompt-builder.ts',
    find: 'added: [received, close, suffix]',
    replace: 'added: [received, suffix]',
  },
  {
    name: 'capture: the recorded reply is left out of the next prompt',
    file: 'src/proxy/prompt/prompt-builder.ts',
    find: 'added: [received, close, suffix]',
    replace: 'added: [close, suffix]',
  },
  {
    name: 'capture: the next prompt contains text that the harness did not receive',
    file: 'src/proxy/prompt/prompt-builder.ts',
    find: 'completion.responseIds.subarray(0, count)',
    replace: 'completion.responseIds',
  },
  {
    name: 'capture: text after a tool call is not searched for',
    file: 'src/proxy/prompt/received-part.ts',
    find: 'if (hasCalls && endsWithItsCalls(completion, template, length)) return ids.length;',
    replace: 'if (hasCalls) return ids.length;',
  },
  {
    name: 'capture: thinking is kept where the template drops it',
    file: 'src/proxy/prompt/prompt-builder.ts',
    find: "return thinking[boundary] === 'kept';",
    replace: 'return true;',
  },
  {
    name: 'capture: the close of the turn occurs twice before the new part',
    file: 'src/engines/turn-close.ts',
    find: 'const suffix = whole.slice(last + 1);\n  return suffix.length > tail.length && equalIds(suffix.subarray(0, tail.length), tail) ? suffix : null;',
    replace: 'const suffix = whole.slice(last);\n  return suffix.length > tail.length ? suffix : null;',
  },
  {
    name: 'capture: a prompt that is continued twice is overwritten',
    file: 'src/proxy/prompt/prompt-buffers.ts',
    find: 'known.owner === base.completionId',
    replace: 'true',
  },
  {
    name: 'capture: engines receive references in the place of images',
    file: 'src/proxy/prompt/engine-messages.ts',
    find: 'const shown = withImageUrls(message, this.session.imageUrl);',
    replace: 'const shown: PromptMessage = message;',
  },
  {
    name: 'capture: two images have one reference',
    file: 'src/tokens/images.ts',
    find: "createHash('sha256').update(url)",
    replace: "createHash('sha256').update(url.slice(0, 20))",
  },
  {
    name: 'capture: all calls of a reply have one id',
    file: 'src/proxy/prompt/call-ids.ts',
    find: 'return `call_${completionId.slice(COMPLETION_PREFIX.length)}_',
    replace: 'index = 0;\n  return `call_${completionId.slice(COMPLETION_PREFIX.length)}_',
  },
  {
    name: 'capture: logprobs above 0 are accepted',
    file: 'src/engines/chat/reply-tokens.ts',
    find: ' && value <= LOGPROB_ROUNDING',
    replace: '',
  },
  {
    name: 'capture: ids need not add up to the usage',
    file: 'src/engines/chat/reply-tokens.ts',
    find: 'if (count !== usage) throw',
    replace: 'if (count < 0) throw',
  },
  {
    name: 'capture: a reply whose request was retried is not marked as abandoned',
    file: 'src/proxy/session/abandoned-replies.ts',
    find: 'completion.abandoned = true;',
    replace: '',
  },
  {
    name: 'capture: side calls of the harness count as its work',
    file: 'src/proxy/session/completion-record.ts',
    find: 'auxiliary: isAuxiliary(parts.request.callKind),',
    replace: 'auxiliary: false,',
  },
  {
    name: 'capture: equal requests at the same time get one sample',
    file: 'src/proxy/session/repeated-requests.ts',
    find: 'if (!isRetry || this.failures.has(digest)) return null;',
    replace: '',
    also: {
      find: 'joinedCall({ digest, isRetry }: RequestIdentity)',
      replace: 'joinedCall({ digest }: RequestIdentity)',
    },
  },
  {
    name: 'capture: a retry after a failure joins an equal call of another client',
    file: 'src/proxy/session/repeated-requests.ts',
    find: 'if (!isRetry || this.failures.has(digest)) return null;',
    replace: 'if (!isRetry) return null;',
  },
  {
    name: 'capture: equal requests in sequence abandon the earlier reply',
    file: 'src/proxy/session/repeated-requests.ts',
    find: 'if (!isRetry && !this.harnessResends) return null;',
    replace: '',
    also: {
      find: 'add({ digest, isRetry }: RequestIdentity, call: Call)',
      replace: 'add({ digest }: RequestIdentity, call: Call)',
    },
  },
  {
    name: 'capture: a request that is sent again after a disconnection does not receive the lost reply',
    file: 'src/proxy/session/repeated-requests.ts',
    find: 'if (lost !== undefined) return lost;',
    replace: '',
    also: {
      find: 'const lost = calls.find((call) => call.lost);\n',
      replace: '',
    },
  },
  {
    name: "capture: a session without rules for call kinds is labelled by another harness's rules",
    file: 'src/dialects/call-kinds/label.ts',
    find: 'name === null ? NO_RULES : HARNESS_RULES[name]',
    replace: "HARNESS_RULES[name ?? 'claude_code']",
    also: { find: 'const NO_RULES: HarnessRules = {};\n', replace: '' },
  },
  {
    name: 'capture: a forced tool call is not recorded as a constraint',
    file: 'src/engines/constraint.ts',
    find: "if (forcesCall(request)) return 'tool_choice';",
    replace: '',
  },
  {
    name: 'resume: a stop string across the seam is not found',
    file: 'src/engines/chat/stop-strings.ts',
    find: 'if (found === null || found.at > lastStart) return null;',
    replace: 'if (found === null || found.at <= lastStart) return null;',
  },
  {
    name: 'resume: the text before the seam is not held back',
    file: 'src/engines/pool/relayed-reply.ts',
    find: 'const end = text.length - stopStartLength(text, this.stops);',
    replace: 'const end = text.length;',
    also: { find: "import { stopStartLength } from '../chat/stop-strings.ts';\n", replace: '' },
  },
  {
    name: 'resume: a reply under a constraint is continued',
    file: 'src/engines/pool/resume-generation.ts',
    find: 'const isConstrained = constraintKindOf(request) !== null;',
    replace: 'const isConstrained = false;',
    also: { find: "import { constraintKindOf } from '../constraint.ts';\n", replace: '' },
  },
  {
    name: 'versions: the cache salt is the version that the engine last reported',
    file: 'src/engines/pool/dispatcher.ts',
    find: 'call.sampling ? await raceAbort(engine.policyVersion(), signal) : null',
    replace: 'call.sampling ? engine.info().policy_version : null',
  },
  {
    name: 'versions: a resume keeps the cached version',
    file: 'src/engines/versions.ts',
    find: 'this.changes++;\n    this.requestedAtMs = Number.NEGATIVE_INFINITY;',
    replace: 'this.changes++;',
  },
  {
    name: 'versions: spans are recorded although the weights changed before the first token',
    file: 'src/engines/versions.ts',
    find: 'spans[0]?.version === before ? [...spans] : unknown',
    replace: '[...spans]',
  },
  {
    name: 'versions: a pause that an engine cannot follow does not concern its replies',
    file: 'src/engines/pool/pausing.ts',
    find: '    member.weightsMayHaveChanged();\n    if (member.inflight > 0) {',
    replace: '    if (member.inflight > 0) {',
  },
  {
    name: 'versions: a reply without spans has the assigned version although the weights may have changed',
    file: 'src/engines/versions.ts',
    find: 'const isSettled = this.hasReported || changes === this.changes;',
    replace: 'const isSettled = true;',
  },
  {
    name: 'leases: a heartbeat with an old epoch renews the next lease',
    file: 'src/rollout/nodes/heartbeats.ts',
    find: 'row.node_id === nodeId && row.epoch === epoch &&',
    replace: 'row.node_id === nodeId &&',
    tests: ['test/rollout/sessions/stale-leases.test.ts'],
  },
  {
    name: 'leases: a node is not ordered to stop an old epoch of a session that has ended',
    file: 'src/rollout/nodes/heartbeats.ts',
    find: 'row === undefined || row.epoch !== epoch',
    replace: 'row === undefined',
    tests: ['test/rollout/sessions/stale-leases.test.ts'],
  },
  {
    name: 'leases: a returned lease requeues the session although its next epoch is leased',
    file: 'src/rollout/sessions/claim.ts',
    find: "row.status !== 'LEASED' || row.epoch !== epochs.get(row.session_id)",
    replace: "row.status !== 'LEASED'",
    tests: ['test/rollout/sessions/stale-leases.test.ts'],
  },
  {
    name: 'leases: a late result of an old epoch is a conflict when the same node holds the next one',
    file: 'src/rollout/sessions/deliver.ts',
    find: 'if (row.epoch !== summary.epoch || row.node_id !== nodeId)',
    replace: 'if (row.node_id !== nodeId)',
    tests: ['test/rollout/sessions/stale-leases.test.ts'],
  },
  {
    name: 'leases: an expired lease is taken back although it was renewed since it was found',
    file: 'src/rollout/sessions/retry.ts',
    find: 'row.lease_expires_ms === null || row.lease_expires_ms > nowMs',
    replace: 'row.lease_expires_ms === null',
    tests: ['test/rollout/sessions/stale-leases.test.ts'],
  },
  {
    name: 'sampling: a temperature of 0 is not sent to vLLM',
    file: 'src/engines/vllm/request.ts',
    find: 'const fields: Record<string, number> = { temperature, top_p };',
    replace: 'const fields: Record<string, number> = { ...(temperature ? { temperature } : {}), top_p };',
    tests: ['test/engines/vllm'],
  },
  {
    name: 'sampling: a temperature of 0 is not sent to chat completions of SGLang',
    file: 'src/engines/sglang/request.ts',
    find: '    temperature: sampling.temperature,\n    top_p',
    replace: '    temperature: sampling.temperature || undefined,\n    top_p',
    tests: ['test/engines/sglang'],
  },
  {
    name: 'sampling: a temperature of 0 is not sent to /generate of SGLang',
    file: 'src/engines/sglang/request.ts',
    find: '      temperature: sampling.temperature,\n      top_p',
    replace: '      temperature: sampling.temperature || undefined,\n      top_p',
    tests: ['test/engines/sglang'],
  },
  {
    name: 'sampling: a temperature of 0 is not sent to an API without tokens',
    file: 'src/engines/openai/request.ts',
    find: 'temperature: sampling.temperature,',
    replace: '...(sampling.temperature ? { temperature: sampling.temperature } : {}),',
    tests: ['test/engines/openai'],
  },
  {
    name: 'sampling: a temperature of 0 is not sent to llama.cpp',
    file: 'src/engines/llama-cpp/request.ts',
    find: 'temperature: sampling.temperature,',
    replace: '...(sampling.temperature ? { temperature: sampling.temperature } : {}),',
    tests: ['test/engines/llama-cpp'],
  },
  {
    name: "sampling: the harness's temperature replaces a temperature of 0",
    file: 'src/proxy/session/engine-request.ts',
    find: 'return { ...sampling, max_tokens: maxTokens, seed };',
    replace:
      'const temperature = sampling.temperature || (request.samplingAsked.temperature ?? 1);\n  return { ...sampling, temperature, max_tokens: maxTokens, seed };',
    tests: ['test/proxy/http'],
  },
  {
    name: 'journal: a full segment is deleted when one of its attempts is released',
    file: 'src/proxy/journal/journal.ts',
    find: 'segment.attempts.delete(key) && segment.sealed && segment.attempts.size === 0',
    replace: 'segment.attempts.delete(key) && segment.sealed',
    tests: ['test/proxy/journal'],
  },
  {
    name: 'journal: a segment that records are written to is deleted',
    file: 'src/proxy/journal/journal.ts',
    find: 'segment.attempts.delete(key) && segment.sealed && segment.attempts.size === 0',
    replace: 'segment.attempts.delete(key) && segment.attempts.size === 0',
    tests: ['test/proxy/journal'],
  },
  {
    name: 'journal: a record has only the first version span',
    file: 'src/tokens/codec.ts',
    find: 'versionSpans: [...head.versionSpans],',
    replace: 'versionSpans: head.versionSpans.slice(0, 1),',
    tests: ['test/tokens'],
  },
  {
    name: 'keys: a key in the other case is accepted',
    file: 'src/proxy/session/keys.ts',
    find: "createHash('sha256').update(key)",
    replace: "createHash('sha256').update(key.toLowerCase())",
    tests: ['test/proxy/http'],
  },
  {
    name: 'keys: a key that decodes to the same bytes is accepted',
    file: 'src/proxy/session/keys.ts',
    find: "createHash('sha256').update(key)",
    replace: "createHash('sha256').update(Buffer.from(key, 'base64url'))",
    tests: ['test/proxy/http'],
  },
  {
    name: 'keys: a longer key is accepted',
    file: 'src/proxy/session/keys.ts',
    find: "createHash('sha256').update(key)",
    replace: "createHash('sha256').update(key.slice(0, 43))",
    tests: ['test/proxy/http'],
  },
  {
    name: 'keys: the last character of a key is ignored',
    file: 'src/proxy/session/keys.ts',
    find: "createHash('sha256').update(key)",
    replace: "createHash('sha256').update(key.slice(0, 42))",
    tests: ['test/proxy/http'],
  },
  {
    name: 'keys: the key of an agent that has ended is accepted while the session is evaluated',
    file: 'src/gateway/session/session-runner.ts',
    find: '          release();\n          await session.close();',
    replace: '          release();',
    tests: ['test/gateway/session/ended-agent.test.ts'],
  },
  {
    name: 'retries: a retry joins an equal call of another session',
    file: 'src/proxy/session/repeated-requests.ts',
    find: 'private readonly calls = new Map<string, readonly Call[]>();',
    replace: 'private readonly calls = CALLS;',
    also: {
      find: 'export class RepeatedRequests {',
      replace: 'const CALLS = new Map<string, readonly Call[]>();\nexport class RepeatedRequests {',
    },
    tests: ['test/proxy/session'],
  },
  {
    name: 'rewards: an agent that used up its time gets 0 when the evaluation does not end',
    file: 'src/gateway/session/postrun-stage.ts',
    find: '    failEvaluation(attempt, error);\n    // The reward',
    replace:
      "    failEvaluation(attempt, error);\n    if (outcome === 'agent_timeout') return { reward: 0, details: {} };\n    // The reward",
    tests: ['test/gateway/session/ended-agent.test.ts'],
  },
  {
    name: 'versions: a completion record has only the first version span',
    file: 'src/tokens/records.ts',
    find: 'JSON.stringify(c.versionSpans)',
    replace: 'JSON.stringify(c.versionSpans.slice(0, 1))',
    tests: ['test/tokens'],
  },
  {
    name: 'versions: a reply that spans an update has the last version only',
    file: 'src/proxy/session/completion-record.ts',
    find: 'versionSpans: reply.versionSpans,',
    replace: 'versionSpans: reply.versionSpans.slice(-1).map((span) => ({ ...span, start: 0 })),',
    tests: ['test/golden'],
  },
  {
    name: 'versions: the spans of a resumed reply start at 0',
    file: 'src/engines/chat/reply-tokens.ts',
    find: 'start: start + count, end: end + count',
    replace: 'start, end',
    tests: ['test/engines/llama-cpp', 'test/engines/sglang'],
  },
  {
    name: 'graph: a reply of which only the beginning was sent back counts as exact',
    file: 'src/tokens/graph.ts',
    find: 'exact: kept === response.length',
    replace: 'exact: kept > 0',
  },
  {
    name: 'graph: the last token of a stop string closes turns',
    file: 'src/tokens/graph.ts',
    find: "if (stop?.kind === 'token') ids.add(stop.id);",
    replace: "ids.add(stop?.kind === 'token' ? stop.id : (responseIds.at(-1) ?? 0));",
    also: {
      find: 'for (const { model, stop } of completions)',
      replace: 'for (const { model, stop, responseIds } of completions)',
    },
  },
  {
    name: 'graph: a completion continues those of other threads and tools',
    file: 'src/tokens/graph.ts',
    find: 'if (node.line !== line || ',
    replace: 'if (',
  },
  {
    name: 'graph: drift without a proof counts as retokenized',
    file: 'src/tokens/drift.ts',
    find: 'if (proof() === true)',
    replace: 'if (proof() !== false)',
  },
  {
    name: 'builders: the last token of a reply is not trained',
    file: 'src/tokens/builders/assembly.ts',
    find: 'lossMask.fill(1, start, end);',
    replace: 'lossMask.fill(1, start, end - 1);',
  },
  {
    name: 'builders: the turn close is dropped at a merged turn',
    file: 'src/tokens/builders/assembly.ts',
    find: 'return closed ? start : start - 1;',
    replace: 'return start;',
  },
  {
    name: 'builders: every re-rendered turn is merged',
    file: 'src/tokens/builders/built-in.ts',
    find: "on_drift === 'merge' || node.drift === 'retokenized' ? node.parent : null",
    replace: 'node.parent',
  },
  {
    name: 'builders: shared turns are trained in every chain',
    file: 'src/tokens/builders/chains.ts',
    find: '    if (chain !== undefined) chain.push(node);',
    replace:
      '    if (chain === undefined && node.parent !== null && isTrained(node)) chains.set(leaf, [node.parent, node]);\n    else if (chain !== undefined) chain.push(node);',
  },
  {
    name: 'builders: versions are at the wrong tokens of later turns',
    file: 'src/tokens/builders/assembly.ts',
    find: 'spans.push({ version: span.version, start: start + span.start, end: start + span.end });',
    replace: 'spans.push({ version: span.version, start: span.start, end: span.end });',
  },
  {
    name: 'builders: abandoned replies are trained',
    file: 'src/tokens/builders/exclusion.ts',
    find: "if (completion.abandoned && !used && !include.includes('abandoned')) return 'abandoned';",
    replace: '',
  },
  {
    name: 'builders: every step is the last of its episode',
    file: 'src/tokens/builders/built-in.ts',
    find: 'last: turn === turns.length - 1',
    replace: 'last: true',
  },
  {
    name: 'engines: the measured mode of log-probabilities is ignored',
    file: 'src/engines/logprobs-probe.ts',
    find: 'return { mode: measured, notes, isRepeatable: false };',
    replace: 'return { mode: configured, notes, isRepeatable: false };',
    tests: ['test/engines/logprobs-probe.test.ts', 'test/engines/logprobs-mode.test.ts'],
  },
  {
    name: 'engines: a vLLM server that was paused at registration is never measured',
    file: 'src/engines/vllm/engine.ts',
    find: 'logprobsMode: await this.modeOfReply(),',
    replace: 'logprobsMode: this.logprobs?.mode ?? null,',
    tests: ['test/engines/logprobs-mode.test.ts'],
  },
  {
    name: 'builders: constrained replies are trained unasked',
    file: 'src/tokens/builders/exclusion.ts',
    find: "if (completion.request.constraint !== null && constrained === 'mask') return 'constrained';",
    replace: '',
  },
  {
    name: 'builders: constraints are named at the wrong tokens',
    file: 'src/tokens/builders/assembly.ts',
    find: 'constrainedSpans.push({ constraint, start, end });',
    replace: 'constrainedSpans.push({ constraint, start, end: end - 1 });',
  },
  {
    name: 'audit: a trace may hide a constraint',
    file: 'src/tokens/trace-check.ts',
    find: 'same !== (constraint === null ? 0 : run.length)',
    replace: 'same > run.length',
  },
  {
    name: 'audit: a token may be trained twice',
    file: 'src/tokens/audit.ts',
    find: 'if (trainedAt[at] !== 0) {',
    replace: 'if (trainedAt[at] === 2) {',
  },
];
