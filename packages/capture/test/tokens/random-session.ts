import type { AssistantMessage, DriftClass, LinkKind } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { RequestMemory } from '../../src/proxy/session/request-memory.ts';
import type { RoutedExperts } from '../../src/reply.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import type { SameText } from '../../src/tokens/drift.ts';
import type { GraphOptions } from '../../src/tokens/graph.ts';
import { CALL_CLOSE, CLOSE } from './session.ts';
import { type History, Transcript } from './transcript.ts';

/** Number of bytes in one row of routed experts: one layer with two experts of one byte each. */
export const ROW_BYTES = 2;

const KINDS = [
  'go_on',
  'go_on',
  'go_on',
  'rerender',
  'retry',
  'edit',
  'compact',
  'new_thread',
  'other_tools',
  'aside',
] as const;

/**
 * Generates one step of a random harness. `on` selects the earlier completion on which the step is based. The other fields set the details
 * of the step.
 */
const stepArbitrary = fc.record({
  kind: fc.constantFrom(...KINDS),
  on: fc.nat({ max: 1000 }),
  size: fc.integer({ min: 1, max: 80 }),
  keep: fc.nat({ max: 80 }),
  end: fc.constantFrom('close', 'close', 'call_close', 'length', 'stop_string', 'nothing'),
  mark: fc.constantFrom('none', 'none', 'none', 'none', 'abandoned', 'undelivered'),
  versionAt: fc.nat({ max: 80 }),
  /** The form in which the harness returns the assistant turn of the earlier completion. */
  given: fc.constantFrom('whole', 'whole', 'split', 'edited', 'written_anew', 'unthinking'),
  /** Whether an engine decodes the sampled and the re-rendered ids to the same text; `null` when it cannot decode them. */
  proof: fc.constantFrom(true, false, null),
  thinks: fc.boolean(),
  constraint: fc.constantFrom(null, null, null, 'tool_choice' as const, 'response_format' as const),
  tokens: fc.constantFrom('reported', 'reported', 'reported', 'reported', 'unreported', 'without_logprobs'),
  experts: fc.constantFrom('all', 'all', 'all', 'late', 'none'),
});
type Step = typeof stepArbitrary extends fc.Arbitrary<infer T> ? T : never;

/** A completion with its expected place in the token graph, which follows from the step that created it. */
export type Known = {
  readonly completion: Completion;
  readonly history: History;
  readonly link: LinkKind;
  readonly parent: string | null;
  readonly drift: DriftClass | null;
  readonly toolsText: string;
};

export type RandomSession = {
  readonly known: readonly Known[];
  /** The completions of all entries of the field `known`, in random order. */
  readonly completions: readonly Completion[];
  readonly options: GraphOptions;
};

type Facts = Omit<Known, 'completion' | 'history'>;

/**
 * Makes a session from random steps. For each completion that it adds, it records the expected link to the parent completion (`root`,
 * `exact`, `fork` and so on). The link follows from the step, so that no ids need to be compared.
 */
class Play {
  readonly known: Known[] = [];
  /** For each re-rendered turn, whether its ids decode to the sampled text. The map's key is the list of these ids, joined by commas. */
  readonly proofs = new Map<string, boolean | null>();
  private readonly t = new Transcript();
  private readonly system = this.t.fresh(2);
  private readonly closesKnown: boolean;

  constructor(closesKnown: boolean) {
    this.closesKnown = closesKnown;
  }

  take(step: Step): void {
    const { t, known } = this;
    const on = known[step.on % Math.max(known.length, 1)];
    const root = { link: 'root', parent: null, drift: null, toolsText: '[]' } as const;
    if (on === undefined || step.kind === 'new_thread') {
      this.add(step, t.start(this.system), root, on === undefined ? 'main' : `sub${known.length}`);
      return;
    }
    const { completion, history, toolsText } = on;
    const { thread } = completion;
    const empty = completion.responseIds.length === 0;
    if (step.kind === 'compact') {
      this.add(step, t.start(this.system), { ...root, toolsText }, thread);
    } else if (step.kind === 'retry' || (empty && step.kind !== 'edit')) {
      this.add(step, history, { ...on, link: on.link === 'root' ? 'fork' : on.link }, thread);
    } else if (step.kind === 'edit') {
      const edited = t.turn({ ids: history.ids.slice(0, -5), messages: history.messages.slice(0, -1) }, 'tool');
      // Repeats a request with another last turn. If the earlier request has a parent, the repeated one has the same parent. Otherwise it
      // becomes a root when its history before the new turn is only the system message, and a fork in all other cases.
      if (on.parent !== null) this.add(step, edited, on, thread);
      else this.add(step, edited, { ...on, link: history.messages.length === 2 ? 'root' : 'fork' }, thread);
    } else if (step.kind === 'rerender') {
      this.rerender(step, on);
    } else if (step.kind === 'other_tools') {
      const other = `[{"type":"function","function":{"name":"tool_${known.length}"}}]`;
      this.add(
        step,
        t.after(history, completion),
        { link: 'fork', parent: null, drift: null, toolsText: other },
        thread,
      );
    } else {
      const facts = { link: 'exact', parent: completion.completionId, drift: null, toolsText } as const;
      this.add(step, t.after(history, completion), facts, thread);
    }
  }

  private rerender(step: Step, { completion, history, toolsText }: Known): void {
    const kept = [...completion.responseIds.subarray(0, Math.min(step.keep, completion.responseIds.length - 1))];
    const rendered = [...kept, ...this.t.fresh(2)];
    this.proofs.set(rendered.join(), step.proof);
    const given = givenBack(completion.message, step.given);
    const facts = {
      link: 'rerendered',
      parent: completion.completionId,
      drift: this.driftOf(step, completion.message),
      toolsText,
    } as const;
    this.add(step, this.t.after(history, completion, rendered, 'tool', given), facts, completion.thread);
  }

  /** Returns the expected drift class of a re-rendered turn. The class follows from the form in which the harness returned the turn. */
  private driftOf({ given, proof }: Step, { reasoning_content }: AssistantMessage): DriftClass {
    const thought = reasoning_content !== undefined;
    if (given === 'edited') return 'rewritten';
    if (given === 'unthinking' && thought) return 'reasoning_dropped';
    if (proof === true && this.closesKnown) return 'retokenized';
    return thought && given !== 'written_anew' ? 'reasoning_dropped' : 'reserialized';
  }

  private add(step: Step, history: History, facts: Facts, thread: string): void {
    const { t, known } = this;
    const isUnreported = step.tokens === 'unreported' && step.end !== 'nothing';
    const response = isUnreported || step.end === 'nothing' ? [] : endedBy(step.end, t.fresh(step.size));
    const split = Math.min(step.versionAt, response.length);
    const last = response.at(-1);
    const byToken = !isUnreported && (step.end === 'close' || step.end === 'call_close');
    const completion = t.call(history, {
      response,
      thread,
      toolsText: facts.toolsText,
      constraint: step.constraint,
      message: messageOf(known.length, step.thinks),
      stop:
        byToken && last !== undefined
          ? { kind: 'token', id: last }
          : step.end === 'stop_string'
            ? { kind: 'string', text: 'END' }
            : null,
      capture: {
        mode: isUnreported ? 'text' : step.keep % 2 === 0 ? 'tokens' : 'chat',
        logprobs_mode: isUnreported || step.tokens === 'without_logprobs' ? null : 'processed',
        thinking_retention: 'template',
        spliced_onto: null,
        rendered_because: 'chat_mode',
      },
      usage: {
        prompt_tokens: history.ids.length + 1,
        completion_tokens: isUnreported ? step.size : response.length,
        cached_tokens: null,
      },
      routedExperts: expertsOf(known.length, history.ids.length + 1, response.length, step.experts),
      versionSpans: [
        { version: 'v1', start: 0, end: split },
        { version: 'v2', start: split, end: response.length },
      ],
      engineId: step.keep % 3 === 0 ? 'other' : 'engine',
      callKind: step.kind === 'compact' ? 'compaction' : 'main',
      abandoned: step.mark === 'abandoned',
      undelivered: step.mark === 'undelivered',
      auxiliary: step.kind === 'aside',
    });
    known.push({ ...facts, completion, history });
  }
}

function endedBy(end: Step['end'], body: readonly number[]): number[] {
  if (end === 'close') return [...body, CLOSE];
  return end === 'call_close' ? [...body, CALL_CLOSE] : [...body];
}

function messageOf(index: number, thinks: boolean): AssistantMessage {
  return {
    role: 'assistant',
    content: `reply ${index}`,
    ...(thinks ? { reasoning_content: `thought ${index}` } : {}),
    tool_calls: [
      { id: `id${index}`, type: 'function', function: { name: 'f', arguments: `{"n": ${index}, "x": [1]}` } },
    ],
  };
}

function givenBack(message: AssistantMessage, how: Step['given']): AssistantMessage[] {
  const { reasoning_content, tool_calls = [], ...rest } = message;
  const thought = reasoning_content === undefined ? {} : { reasoning_content };
  switch (how) {
    case 'whole':
      return [message];
    case 'split':
      return [
        { role: 'assistant', content: null, ...thought },
        { role: 'assistant', content: rest.content },
        { role: 'assistant', content: null, tool_calls: tool_calls.map((call) => ({ ...call, id: 'other' })) },
      ];
    case 'edited':
      return [{ ...message, content: 'something else' }];
    case 'written_anew':
      return [
        {
          ...message,
          tool_calls: tool_calls.map((call) => {
            const { n, x } = JSON.parse(call.function.arguments);
            return { ...call, function: { name: 'f', arguments: JSON.stringify({ x, n }) } };
          }),
        },
      ];
    case 'unthinking':
      return [{ ...rest, tool_calls }];
  }
}

/** Returns the routed experts at a position of a completion. The two bytes differ between positions and between completions. */
export function expertRow(index: number, position: number): number[] {
  return [(index * 7 + position) % 251, (position >> 3) % 251];
}

function expertsOf(index: number, prompt: number, response: number, which: Step['experts']): RoutedExperts | null {
  if (which === 'none') return null;
  const start = which === 'late' ? prompt - 1 : 0;
  const rows = Math.max(prompt + response - 1 - start, 0);
  const data = Buffer.from(Array.from({ length: rows }, (_, row) => expertRow(index, start + row)).flat());
  return { dtype: 'uint8', shape: [rows, 1, ROW_BYTES], start, data };
}

/** Stores the prompts as the proxy does: the prompts of an agent thread become views of one buffer when each extends the previous one. */
function sharing(known: readonly Known[]): Known[] {
  const memory = new RequestMemory();
  return known.map((one) => {
    const { thread, promptIds } = one.completion;
    return { ...one, completion: { ...one.completion, promptIds: memory.prompt(thread, promptIds) } };
  });
}

export const randomSession: fc.Arbitrary<RandomSession> = fc
  .tuple(
    fc.array(stepArbitrary, { minLength: 1, maxLength: 25 }),
    fc.infiniteStream(fc.nat()),
    fc.boolean(),
    fc.boolean(),
  )
  .map(([steps, order, templateKnown, shared]) => {
    // The chat template ends a turn with the id CLOSE. The token graph learns this id when a reply stops at it.
    const learned = steps.some((step) => step.end === 'close' && step.tokens !== 'unreported');
    // In some sessions every reply ends with CALL_CLOSE, so that the token graph cannot learn CLOSE. In this case the graph gets the
    // template's end-of-turn ids.
    const template = templateKnown || (!learned && steps.some((step) => step.end === 'call_close'));
    const play = new Play(template || learned);
    for (const step of steps) play.take(step);
    const { proofs } = play;
    const known = shared ? sharing(play.known) : play.known;
    const shuffled = known.map(({ completion }) => ({ completion, at: order.next().value ?? 0 }));
    shuffled.sort((a, b) => a.at - b.at);
    const sameText: SameText = (_, rendered) => proofs.get(rendered.join()) ?? null;
    const closeIds = template ? [CLOSE, CALL_CLOSE] : [];
    return { known, completions: shuffled.map(({ completion }) => completion), options: { sameText, closeIds } };
  });
