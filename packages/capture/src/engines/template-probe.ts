import { createHash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import type { TemplateFacts } from '@floe-rl/core/schema';
import {
  equalIds,
  historyEndOf,
  idsAfterClose,
  PLACEHOLDER_ANSWER,
  placeholderHistory,
  suffixAfter,
} from './turn-close.ts';

/** Properties of a chat template that are assumed for an engine whose template cannot be probed. */
export const UNKNOWN_TEMPLATE: TemplateFacts = {
  close_ids: [],
  call_end: { ids: [], each: null },
  tail_render: false,
  thinking: { tool_results: 'unknown', user_message: 'unknown' },
  fingerprint: null,
};

/**
 * Function that renders chat messages in floe's canonical form, given as JSON texts, with an engine's chat template. Rejects as
 * `Engine.render` does.
 */
export type TemplateRenderer = (
  messageTexts: readonly string[],
  options: { readonly toolsText: string; readonly generationPrompt: boolean },
) => Promise<Int32Array>;

/**
 * How a chat template treats the thinking of an assistant turn when more messages follow that turn: `kept`, `dropped` or `unknown`.
 */
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

/**
 * Tool calls in the conversations that are rendered to probe a template. Their ids have nine letters and digits, because the strictest
 * templates accept only this form.
 */
const CALLS = [
  { id: 'abcdefgh1', name: 'look' },
  { id: 'abcdefgh2', name: 'look' },
] as const;

const messageJson = (message: object): string => JSON.stringify(message);
const user = (content: string): string => messageJson({ role: 'user', content });
const callTurn = (args: (index: number) => string, reasoning?: string): string =>
  messageJson({
    role: 'assistant',
    content: null,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    tool_calls: CALLS.map(({ id, name }, index) => ({
      id,
      type: 'function',
      function: { name, arguments: args(index) },
    })),
  });

/**
 * Text that mixes words, punctuation, scripts and white space, so that different tokenizers produce different token ids for it. It contains
 * no token that closes a turn.
 */
const VARIED = 'It\'s 2 o\'clock:\n\n- naïve café, 東京, 🚲\none\ntwo\n\tx += 10_000; // {"a": [1.5, null]}  \r\n';
const RESULTS = [
  messageJson({ role: 'tool', tool_call_id: CALLS[0].id, content: 'seventeen' }),
  messageJson({ role: 'tool', tool_call_id: CALLS[1].id, content: VARIED }),
];
const QUESTION = user(VARIED);
/**
 * Thinking text in the conversations that are rendered to probe a template. It has far more tokens than the placeholder that some templates
 * insert for thinking that they drop.
 */
const THINKING = 'alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima';
const MIN_THINKING_IDS = 12;

const BEFORE = [
  messageJson({ role: 'system', content: 'Be brief.' }),
  user('What is the number?'),
  callTurn((index) => `{"id": ${index}}`),
  ...RESULTS,
  messageJson({ role: 'assistant', content: 'It is 17.' }),
  user('And the others?'),
];
const CALLED = [...BEFORE, callTurn((index) => `{"id": ${index + 7}}`)];
const ANSWERED = [...BEFORE, messageJson({ role: 'assistant', content: 'They are 18 and 19.' })];

/**
 * Determines the properties of a chat template by rendering a few short conversations. When the renderer refuses a conversation, the
 * properties that depend on it are unknown, as in {@link UNKNOWN_TEMPLATE}. Rejects as the renderer does when the engine cannot be reached.
 */
export async function probeTemplate(render: TemplateRenderer): Promise<TemplateFacts> {
  const probe = new TemplateProbe(render);
  const closeIds = await probe.closeIds();
  const callEnd = await probe.callEnd(closeIds);
  const tailRender = await probe.tailRender(closeIds);
  return {
    close_ids: [...closeIds],
    call_end: callEnd,
    tail_render: tailRender,
    thinking: {
      tool_results: await probe.thinking((reasoning) => [callTurn(() => '{}', reasoning), ...RESULTS]),
      user_message: await probe.thinking((reasoning) => [
        messageJson({
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
  /**
   * The token ids of each rendered conversation, keyed by the conversation's JSON text; `null` for a conversation that the renderer
   * refused.
   */
  private readonly rendered = new Map<string, Int32Array | null>();

  constructor(render: TemplateRenderer) {
    this.render = render;
  }

  /**
   * Finds the token ids that close an assistant turn. The first is the id that follows the content of a text turn. The second is the id that
   * closes a turn of tool calls, if it differs. Returns an empty list when no closing id was found.
   */
  async closeIds(): Promise<readonly number[]> {
    const plain = await this.history(placeholderHistory([]));
    const other = await this.history([QUESTION, messageJson({ role: 'assistant', content: 'no' })]);
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

  /**
   * Finds the ids that end tool calls: the common end of two turns that call the same tool with different arguments. An id that occurs once
   * for each call of the turn ends every call.
   */
  async callEnd(closeIds: readonly number[]): Promise<TemplateFacts['call_end']> {
    const one = turnOf(await this.history(placeholderHistory(CALLS)), closeIds);
    const other = turnOf(await this.history([QUESTION, callTurn((index) => `{"id": ${index}}`)]), closeIds);
    const ids = one === null || other === null ? [] : [...one.subarray(one.length - sharedEnd(one, other))];
    const each = ids.findLast((id) => one?.filter((its) => its === id).length === CALLS.length) ?? null;
    return { ids, each };
  }

  /**
   * Whether new messages render to the same token ids after a short placeholder turn as after a conversation with a system message and
   * tools. If so, new messages can be rendered without the conversation that precedes them.
   */
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

  /**
   * Determines whether the template keeps or drops the thinking of an assistant turn that is followed by other messages. `messages` returns
   * this turn and the messages after it; its argument is the thinking of the turn, or `undefined` for a turn without thinking.
   */
  async thinking(messages: (reasoning: string | undefined) => readonly string[]): Promise<ThinkingFate> {
    const [question = ''] = placeholderHistory([]);
    const without = await this.prompt([question, ...messages(undefined)]);
    const withIt = without && (await this.prompt([question, ...messages(THINKING)]));
    if (!without || !withIt) return 'unknown';
    if (equalIds(without, withIt)) return 'dropped';
    return withIt.length - without.length >= MIN_THINKING_IDS ? 'kept' : 'unknown';
  }

  /**
   * Returns a hash of all conversations that this probe has rendered. It differs between tokenizers and between chat templates. The first
   * turn of each conversation is left out of the hash, because some templates write the current date into it. `null` when the renderer
   * refused every conversation.
   */
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
 * Finds the token id that closes a turn, given two renderings of conversations with different texts. It is the first id in their common
 * ending that occurs equally often in the two. An id whose count depends on the texts, such as a line break after the content, does not
 * close a turn. `null` when there is no such id.
 */
function firstClose(a: Int32Array, b: Int32Array): number | null {
  for (const id of a.subarray(a.length - sharedEnd(a, b))) {
    const count = (ids: Int32Array): number => ids.filter((other) => other === id).length;
    if (count(a) === count(b)) return id;
  }
  return null;
}

/** Returns how many ids at their ends two renderings have in common. */
function sharedEnd(a: Int32Array, b: Int32Array): number {
  let shared = 0;
  while (shared < Math.min(a.length, b.length) && a.at(-1 - shared) === b.at(-1 - shared)) shared++;
  return shared;
}

/** Returns the last turn of a rendered history without the id that closes it; `null` when the history has no closing id. */
function turnOf(ids: Int32Array | null, closeIds: readonly number[]): Int32Array | null {
  const end = ids?.findLastIndex((id) => closeIds.includes(id)) ?? -1;
  if (ids === null || end < 0) return null;
  const before = ids.subarray(0, end).findLastIndex((id) => closeIds.includes(id));
  return ids.subarray(before + 1, end);
}
