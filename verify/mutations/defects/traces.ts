import type { Mutation } from '../mutation.ts';

/** Defects in the token graph, the builders, the audit and the policy versions of traces. */
export const TRACE_DEFECTS: readonly Mutation[] = [
  {
    name: 'versions: the cache salt is the version that the engine last reported',
    file: 'packages/capture/src/engines/pool/pooled-call.ts',
    find: 'call.sampling ? engine.policyVersion() : null',
    replace: 'call.sampling ? engine.info().policy_version : null',
  },
  {
    name: 'versions: a resume keeps the cached version',
    file: 'packages/capture/src/engines/versions.ts',
    find: 'this.changes++;\n    this.requestedAtMs = Number.NEGATIVE_INFINITY;',
    replace: 'this.changes++;',
  },
  {
    name: 'versions: spans are recorded although the weights changed before the first token',
    file: 'packages/capture/src/engines/versions.ts',
    find: 'spans[0]?.version === before ? [...spans] : unknown',
    replace: '[...spans]',
  },
  {
    name: 'versions: a pause that an engine cannot follow does not concern its replies',
    file: 'packages/capture/src/engines/pool/pausing.ts',
    find: '    member.weightsMayHaveChanged();\n    if (member.inflight > 0) {',
    replace: '    if (member.inflight > 0) {',
  },
  {
    name: 'versions: a reply without spans has the assigned version although the weights may have changed',
    file: 'packages/capture/src/engines/versions.ts',
    find: 'const isSettled = this.hasReported || changes === this.changes;',
    replace: 'const isSettled = true;',
  },
  {
    name: 'versions: a completion record has only the first version span',
    file: 'packages/capture/src/tokens/records.ts',
    find: 'JSON.stringify(c.versionSpans)',
    replace: 'JSON.stringify(c.versionSpans.slice(0, 1))',
    tests: ['packages/capture/test/tokens'],
  },
  {
    name: 'versions: a reply that spans an update has the last version only',
    file: 'packages/capture/src/proxy/session/completion-record.ts',
    find: 'versionSpans: reply.versionSpans,',
    replace: 'versionSpans: reply.versionSpans.slice(-1).map((span) => ({ ...span, start: 0 })),',
    tests: ['test/golden'],
  },
  {
    name: 'versions: the spans of a resumed reply start at 0',
    file: 'packages/capture/src/engines/chat/reply-tokens.ts',
    find: 'start: start + count, end: end + count',
    replace: 'start, end',
    tests: ['packages/capture/test/engines/llama-cpp', 'packages/capture/test/engines/sglang'],
  },
  {
    name: 'graph: a reply of which only the beginning was sent back counts as exact',
    file: 'packages/capture/src/tokens/graph.ts',
    find: 'exact: kept === response.length',
    replace: 'exact: kept > 0',
  },
  {
    name: 'graph: the last token of a stop string closes turns',
    file: 'packages/capture/src/tokens/graph.ts',
    find: "if (stop?.kind === 'token') ids.add(stop.id);",
    replace: "ids.add(stop?.kind === 'token' ? stop.id : (responseIds.at(-1) ?? 0));",
    also: {
      find: 'for (const { model, stop } of completions)',
      replace: 'for (const { model, stop, responseIds } of completions)',
    },
  },
  {
    name: 'graph: a completion continues those of other threads and tools',
    file: 'packages/capture/src/tokens/graph.ts',
    find: 'if (node.line !== line || ',
    replace: 'if (',
  },
  {
    name: 'graph: drift without a proof counts as retokenized',
    file: 'packages/capture/src/tokens/drift.ts',
    find: 'if (proof() === true)',
    replace: 'if (proof() !== false)',
  },
  {
    name: 'builders: the last token of a reply is not trained',
    file: 'packages/capture/src/tokens/builders/assembly.ts',
    find: 'lossMask.fill(1, start, end);',
    replace: 'lossMask.fill(1, start, end - 1);',
  },
  {
    name: 'builders: the turn close is dropped at a merged turn',
    file: 'packages/capture/src/tokens/builders/assembly.ts',
    find: 'return closed ? start : start - 1;',
    replace: 'return start;',
  },
  {
    name: 'builders: every re-rendered turn is merged',
    file: 'packages/capture/src/tokens/builders/built-in.ts',
    find: "on_drift === 'merge' || node.drift === 'retokenized' ? node.parent : null",
    replace: 'node.parent',
  },
  {
    name: 'builders: shared turns are trained in every chain',
    file: 'packages/capture/src/tokens/builders/chains.ts',
    find: '    if (chain !== undefined) chain.push(node);',
    replace:
      '    if (chain === undefined && node.parent !== null && isTrained(node)) chains.set(leaf, [node.parent, node]);\n    else if (chain !== undefined) chain.push(node);',
  },
  {
    name: 'builders: versions are at the wrong tokens of later turns',
    file: 'packages/capture/src/tokens/builders/assembly.ts',
    find: 'spans.push({ version: span.version, start: start + span.start, end: start + span.end });',
    replace: 'spans.push({ version: span.version, start: span.start, end: span.end });',
  },
  {
    name: 'builders: abandoned replies are trained',
    file: 'packages/capture/src/tokens/builders/exclusion.ts',
    find: "if (completion.abandoned && !used && !include.includes('abandoned')) return 'abandoned';",
    replace: '',
  },
  {
    name: 'builders: every step is the last of its episode',
    file: 'packages/capture/src/tokens/builders/built-in.ts',
    find: 'last: turn === turns.length - 1',
    replace: 'last: true',
  },
  {
    name: 'builders: constrained replies are trained unasked',
    file: 'packages/capture/src/tokens/builders/exclusion.ts',
    find: "if (completion.request.constraint !== null && constrained === 'mask') return 'constrained';",
    replace: '',
  },
  {
    name: 'builders: constraints are named at the wrong tokens',
    file: 'packages/capture/src/tokens/builders/assembly.ts',
    find: 'constrainedSpans.push({ constraint, start, end });',
    replace: 'constrainedSpans.push({ constraint, start, end: end - 1 });',
  },
  {
    name: 'audit: a trace may hide a constraint',
    file: 'packages/capture/src/tokens/trace-check.ts',
    find: 'same !== (constraint === null ? 0 : run.length)',
    replace: 'same > run.length',
  },
  {
    name: 'audit: a token may be trained twice',
    file: 'packages/capture/src/tokens/audit.ts',
    find: 'if (trainedAt[at] !== 0) {',
    replace: 'if (trainedAt[at] === 2) {',
  },
];
