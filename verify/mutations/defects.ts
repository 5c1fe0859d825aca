// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
// Defects that would put wrong tokens into training, each a small change of one file.

/** A replacement in a source file. The text `find` must occur exactly once in the file. */
export type Edit = { readonly find: string; readonly replace: string };

/** A planted defect. `also` is a second edit of the same file that is needed for the defect to compile. */
export type Mutation = Edit & { readonly name: string; readonly file: string; readonly also?: Edit };

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
    find: 'added: [completion.responseIds, close, suffix]',
    replace: 'added: [completion.responseIds, suffix]',
  },
  {
    name: 'capture: the recorded reply is left out of the next prompt',
    file: 'src/proxy/prompt/prompt-builder.ts',
    find: 'added: [completion.responseIds, close, suffix]',
    replace: 'added: [close, suffix]',
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
    name: 'capture: a reply that was requested once more is not marked as abandoned',
    file: 'src/proxy/session/abandoned-replies.ts',
    find: 'completion.abandoned = true;',
    replace: '',
  },
  {
    name: 'capture: side calls of the harness count as its work',
    file: 'src/proxy/session/completion-record.ts',
    find: 'auxiliary: !TRAINABLE_KINDS.includes(parts.request.callKind),',
    replace: 'auxiliary: false,',
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
    find: 'lossMask.fill(1, start, start + responseIds.length);',
    replace: 'lossMask.fill(1, start, start + responseIds.length - 1);',
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
    name: 'audit: a token may be trained twice',
    file: 'src/tokens/audit.ts',
    find: 'if (trainedAt[at] !== 0) {',
    replace: 'if (trainedAt[at] === 2) {',
  },
];
