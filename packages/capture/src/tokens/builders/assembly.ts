import type { ConstrainedSpan, VersionSpan } from '@floe-rl/core/schema';
import { assembleExperts } from '../expert-rows.ts';
import type { GraphNode, TokenGraph } from '../graph.ts';
import type { BuiltTrace, TrainedSpan } from './builder.ts';

/** One completion of a trace, with the position of its reply in the trace. */
type Piece = {
  readonly node: GraphNode;
  /**
   * Index in this completion's prompt at which the previous reply ends. The trace takes the prompt ids from this index on, which lie between
   * the previous reply and this reply. For the first completion of a trace, the value is the length of the prompt.
   */
  readonly promptFrom: number;
  /** Position in the trace's response at which the reply starts. */
  readonly start: number;
  readonly exactContext: boolean;
};

/**
 * Joins `nodes` into one trace: the first prompt, then the replies as sampled and the ids between them. Each node must continue the node
 * before it. Replies for which `isTrained` returns `false` get mask 0. A node with link `rerendered` must have a `suffixStart`.
 */
export function assembleTrace(
  graph: TokenGraph,
  nodes: readonly [GraphNode, ...GraphNode[]],
  isTrained: (node: GraphNode) => boolean,
): BuiltTrace {
  const { pieces, length } = layOut(graph, nodes);
  const prompt = nodes[0].completion.promptIds;
  const ids = new Int32Array(prompt.length + length);
  const lossMask = new Uint8Array(length);
  const logprobs = new Float32Array(length);
  const spans: TrainedSpan[] = [];
  const versionSpans: VersionSpan[] = [];
  const constrainedSpans: ConstrainedSpan[] = [];
  ids.set(prompt);
  for (const { node, promptFrom, start, exactContext } of pieces) {
    const { completionId, promptIds, responseIds, responseLogprobs } = node.completion;
    const { constraint } = node.completion.request;
    const end = start + responseIds.length;
    const between = promptIds.subarray(promptFrom);
    ids.set(between, prompt.length + start - between.length);
    ids.set(responseIds, prompt.length + start);
    if (constraint !== null && end > start) constrainedSpans.push({ constraint, start, end });
    if (!isTrained(node)) continue;
    lossMask.fill(1, start, end);
    logprobs.set(responseLogprobs, start);
    spans.push({ completionId, offset: 0, start, length: responseIds.length, exactContext });
    addVersions(versionSpans, node, start);
  }
  const expertPieces = pieces.map(({ node, promptFrom, start }, index) => ({
    completion: node.completion,
    promptFrom: index === 0 ? 0 : promptFrom,
    responseAt: prompt.length + start,
  }));
  const routedExperts = assembleExperts(expertPieces, ids.length);
  return {
    ids,
    promptLength: prompt.length,
    lossMask,
    logprobs,
    spans,
    versionSpans,
    constrainedSpans,
    routedExperts,
    nodes,
    step: null,
  };
}

function layOut(graph: TokenGraph, nodes: readonly GraphNode[]): { pieces: Piece[]; length: number } {
  const pieces: Piece[] = [];
  let length = 0;
  let exactContext = true;
  let previous: GraphNode | null = null;
  for (const node of nodes) {
    const promptFrom = previous === null ? node.completion.promptIds.length : joinAt(graph, previous, node);
    if (previous !== null && node.link !== 'exact') exactContext = false;
    length += node.completion.promptIds.length - promptFrom;
    pieces.push({ node, promptFrom, start: length, exactContext });
    length += node.completion.responseIds.length;
    previous = node;
  }
  return { pieces, length };
}

/**
 * Returns the index in the prompt of `node` of the first id after the reply of `previous`. The ids from this index on join the two replies
 * in the trace. They include the end-of-turn id, unless that id was sampled as the last id of the previous reply.
 */
function joinAt(graph: TokenGraph, previous: GraphNode, node: GraphNode): number {
  const start = node.suffixStart ?? node.completion.promptIds.length;
  if (node.link === 'exact' || node.suffixStart === null) return start;
  const last = previous.completion.responseIds.at(-1);
  const closed = last !== undefined && graph.closeIds.get(previous.completion.model)?.has(last) === true;
  return closed ? start : start - 1;
}

function addVersions(spans: VersionSpan[], node: GraphNode, start: number): void {
  for (const span of node.completion.versionSpans) {
    const last = spans.at(-1);
    if (last !== undefined && last.version === span.version && last.end === start + span.start) {
      spans[spans.length - 1] = { ...last, end: start + span.end };
    } else {
      spans.push({ version: span.version, start: start + span.start, end: start + span.end });
    }
  }
}
