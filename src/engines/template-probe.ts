import { createHash } from 'node:crypto';
import { FloeError } from '../core/errors.ts';
import type { TemplateFacts } from '../schema/index.ts';
import {
  equalIds,
  historyEndOf,
  idsAfterClose,
  PLACEHOLDER_ANSWER,
  placeholderHistory,
  suffixAfter,
} from './turn-close.ts';

/** The facts of an engine whose template cannot be probed. */
export const UNKNOWN_TEMPLATE: TemplateFacts = {
  close_ids: [],
  tail_render: false,
  thinking: { tool_results: 'unknown', user_message: 'unknown' },
  fingerprint: null,
};

/** Renders canonical messages, given as JSON texts, by an engine's chat template. Rejects as `Engine.render` does. */
export type TemplateRenderer = (
  messageTexts: readonly string[],
  options: { readonly toolsText: string; readonly generationPrompt: boolean },
) => Promise<Int32Array>;

/** What a template does with the thinking of a turn once other messages follow it. */
type ThinkingFate = TemplateFacts['thinking']['user_message'];

const NO_TOOLS = '[]';
const TOOLS = JSON.stringify([
  {
    type: 'function',
    function: {
      name: 'look',
      description: 'Looks up a number.',
      parameters: { type: 'object', properties: { id: { type: 'integer' } } },
    },
  },
]);

/** Ids of nine letters and digits, which the strictest templates require. */
const CALLS = [
  { id: 'abcdefgh1', name: 'look' },
  { id: 'abcdefgh2', name: 'look' },
] as const;

const textOf = (message: object): string => JSON.stringify(message);
const user = (content: string): string => textOf({ role: 'user', content });
const callTurn = (args: (index: number) => string, reasoning?: string): string =>
  textOf({
    role: 'assistant',
    content: null,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    tool_calls: CALLS.map(({ id, name }, index) => ({
      id,
      type: 'function',
      function: { name, arguments: args(index) },
    })),
  });

/** Text of many kinds, without a closing token, so that different tokenizers produce different ids. */
const VARIED = 'It\'s 2 o\'clock:\n\n- naïve café, 東京, 🚲\none\ntwo\n\tx += 10_000; // {"a": [1.5, null]}  \r\n';
const RESULTS = [
  textOf({ role: 'tool', tool_call_id: CALLS[0].id, content: 'seventeen' }),
  textOf({ role: 'tool', tool_call_id: CALLS[1].id, content: VARIED }),
];
const QUESTION = user(VARIED);
/** Far more words than a template inserts by itself in place of dropped thinking. */
const THINKING = 'alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima';
const MIN_THINKING_IDS = 12;

const BEFORE = [
  textOf({ role: 'system', content: 'Be brief.' }),
  user('What is the number?'),
  callTurn((index) => `{"id": ${index}}`),
  ...RESULTS,
  textOf({ role: 'assistant', content: 'It is 17.' }),
  user('And the others?'),
];
const CALLED = [...BEFORE, callTurn((index) => `{"id": ${index + 7}}`)];
const ANSWERED = [...BEFORE, textOf({ role: 'assistant', content: 'They are 18 and 19.' })];

/**
 * Determines the properties of a chat template by rendering a few short conversations. Properties that depend on a conversation
 * that the renderer refuses remain unknown. Rejects as the renderer does when it cannot be reached.
 */
export async function probeTemplate(render: TemplateRenderer): Promise<TemplateFacts> {
  const probe = new TemplateProbe(render);
  const closeIds = await probe.closeIds();
  const tailRender = await probe.tailRender(closeIds);
  return {
    close_ids: [...closeIds],
    tail_render: tailRender,
    thinking: {
      tool_results: await probe.thinking((reasoning) => [callTurn(() => '{}', reasoning), ...RESULTS]),
      user_message: await probe.thinking((reasoning) => [
        textOf({
          role: 'assistant',
          content: PLACEHOLDER_ANSWER,
          ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
        }),
        QUESTION,
      ]),
    },
    fingerprint: probe.fingerprint(closeIds),
  };
}

class TemplateProbe {
  private readonly render: TemplateRenderer;
  /** The renderings by conversation; `null` for one that was refused. */
  private readonly rendered = new Map<string, Int32Array | null>();

  constructor(render: TemplateRenderer) {
    this.render = render;
  }

  /** The id that follows the content of any turn of text; then that of turns of calls, if it differs. Empty when unknown. */
  async closeIds(): Promise<readonly number[]> {
    const plain = await this.history(placeholderHistory([]));
    const other = await this.history([QUESTION, textOf({ role: 'assistant', content: 'no' })]);
    const close = plain === null || other === null ? null : firstClose(plain, other);
    if (close === null || plain === null) return [];
    const closing = historyEndOf(plain, [close]);
    const calls = await this.history(placeholderHistory(CALLS));
    const tail = calls === null ? null : (historyEndOf(calls, [close])?.tail ?? null);
    if (calls === null || closing === null || (tail !== null && equalIds(tail, closing.tail))) return [close];
    const others = await this.history([QUESTION, callTurn((index) => `{"id": ${index}}`)]);
    const second = others === null ? null : firstClose(calls, others);
    return second === null || second === close ? [close] : [close, second];
  }

  /** Whether messages of every kind are rendered the same after a placeholder turn as after a conversation with system text and tools. */
  async tailRender(closeIds: readonly number[]): Promise<boolean> {
    if (closeIds.length === 0) return false;
    const cases = [
      { short: placeholderHistory(CALLS), full: CALLED, added: RESULTS },
      { short: placeholderHistory(CALLS), full: CALLED, added: [...RESULTS, QUESTION] },
      { short: placeholderHistory([]), full: ANSWERED, added: [QUESTION] },
    ];
    for (const { short, full, added } of cases) {
      const afterShort = await this.suffix(short, added, NO_TOOLS, closeIds);
      const afterFull = afterShort && (await this.suffix(full, added, TOOLS, closeIds));
      if (!afterShort || !afterFull || !equalIds(afterShort, afterFull)) return false;
    }
    return true;
  }

  /** What the template does with the thinking of the turn that `messages` begin with. */
  async thinking(messages: (reasoning: string | undefined) => readonly string[]): Promise<ThinkingFate> {
    const [question = ''] = placeholderHistory([]);
    const without = await this.prompt([question, ...messages(undefined)]);
    const withIt = without && (await this.prompt([question, ...messages(THINKING)]));
    if (!without || !withIt) return 'unknown';
    if (equalIds(without, withIt)) return 'dropped';
    return withIt.length - without.length >= MIN_THINKING_IDS ? 'kept' : 'unknown';
  }

  /** Hash of the renderings after the first turn, into which some templates write the date; `null` when nothing was rendered. */
  fingerprint(closeIds: readonly number[]): string | null {
    const hash = createHash('sha256');
    let hasRendering = false;
    for (const [conversation, ids] of this.rendered) {
      const part = ids === null ? null : (idsAfterClose(ids, closeIds, closeIds.length === 0 ? 0 : 1) ?? ids);
      hasRendering ||= part !== null;
      hash.update(JSON.stringify([conversation, part === null ? null : [...part]]));
    }
    return hasRendering ? hash.digest('hex') : null;
  }

  private async suffix(
    history: readonly string[],
    added: readonly string[],
    toolsText: string,
    closeIds: readonly number[],
  ): Promise<Int32Array | null> {
    const head = await this.history(history, toolsText);
    const closing = head && historyEndOf(head, closeIds);
    const whole = closing && (await this.prompt([...history, ...added], toolsText));
    return closing && whole && suffixAfter(whole, closeIds, closing);
  }

  private history(texts: readonly string[], toolsText = NO_TOOLS): Promise<Int32Array | null> {
    return this.ids(texts, toolsText, false);
  }

  private prompt(texts: readonly string[], toolsText = NO_TOOLS): Promise<Int32Array | null> {
    return this.ids(texts, toolsText, true);
  }

  private async ids(
    texts: readonly string[],
    toolsText: string,
    generationPrompt: boolean,
  ): Promise<Int32Array | null> {
    const conversation = JSON.stringify([texts, toolsText, generationPrompt]);
    const known = this.rendered.get(conversation);
    if (known !== undefined) return known;
    const ids = await this.render(texts, { toolsText, generationPrompt }).catch(nullIfRejected);
    this.rendered.set(conversation, ids);
    return ids;
  }
}

function nullIfRejected(error: unknown): null {
  if (FloeError.is(error) && error.code === 'engine_rejected') return null;
  throw error;
}

/**
 * The first id of the common end of two renderings that occurs equally often in both. An id whose count depends on the texts, such
 * as a line break after the content, is not a close.
 */
function firstClose(a: Int32Array, b: Int32Array): number | null {
  let shared = 0;
  while (shared < Math.min(a.length, b.length) && a.at(-1 - shared) === b.at(-1 - shared)) shared++;
  for (const id of a.subarray(a.length - shared)) {
    const count = (ids: Int32Array): number => ids.filter((other) => other === id).length;
    if (count(a) === count(b)) return id;
  }
  return null;
}
