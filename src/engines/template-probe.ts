import { createHash } from 'node:crypto';
import { FloeError } from '../core/errors.ts';
import type { TemplateFacts } from '../schema/index.ts';
import { behindClose, closingOf, equalIds, STAND_IN_ANSWER, standInHistory, suffixOf } from './turn-close.ts';

/** Of an engine whose template cannot be looked at. */
export const UNKNOWN_TEMPLATE: TemplateFacts = {
  close_ids: [],
  tail_render: false,
  thinking: { tool_results: 'unknown', user_message: 'unknown' },
  fingerprint: null,
};

/** Renders canonical messages, as JSON texts, with an engine's own template. Rejects as `Engine.render` does. */
export type TemplateRenderer = (
  messageTexts: readonly string[],
  options: { readonly toolsText: string; readonly generationPrompt: boolean },
) => Promise<Int32Array>;

type Boundary = TemplateFacts['thinking']['user_message'];

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

/** Nine letters and digits: what the strictest templates take for the id of a call. */
const CALLS = [
  { id: 'abcdefgh1', name: 'look' },
  { id: 'abcdefgh2', name: 'look' },
] as const;

const textOf = (message: object): string => JSON.stringify(message);
const user = (content: string): string => textOf({ role: 'user', content });
const calling = (args: (index: number) => string, reasoning?: string): string =>
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

/** Many tokens of every kind of text, so that tokenizers that differ show it, and no close among them. */
const VARIED = 'It\'s 2 o\'clock:\n\n- naïve café, 東京, 🚲\none\ntwo\n\tx += 10_000; // {"a": [1.5, null]}  \r\n';
const RESULTS = [
  textOf({ role: 'tool', tool_call_id: CALLS[0].id, content: 'seventeen' }),
  textOf({ role: 'tool', tool_call_id: CALLS[1].id, content: VARIED }),
];
const QUESTION = user(VARIED);
/** Far more words than a template writes by itself where it leaves thinking out. */
const THINKING = 'alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima';
const LEAST_THINKING_IDS = 12;

const BEFORE = [
  textOf({ role: 'system', content: 'Be brief.' }),
  user('What is the number?'),
  calling((index) => `{"id": ${index}}`),
  ...RESULTS,
  textOf({ role: 'assistant', content: 'It is 17.' }),
  user('And the others?'),
];
const CALLED = [...BEFORE, calling((index) => `{"id": ${index + 7}}`)];
const ANSWERED = [...BEFORE, textOf({ role: 'assistant', content: 'They are 18 and 19.' })];

/**
 * Learns what a chat template does by rendering a few short conversations. A renderer that refuses some of them leaves the facts
 * that they would tell unknown; one that cannot be reached makes this reject as it does.
 */
export async function probeTemplate(render: TemplateRenderer): Promise<TemplateFacts> {
  const probe = new Probe(render);
  const closeIds = await probe.closeIds();
  const tailRender = await probe.tailRender(closeIds);
  return {
    close_ids: [...closeIds],
    tail_render: tailRender,
    thinking: {
      tool_results: await probe.thinking((reasoning) => [calling(() => '{}', reasoning), ...RESULTS]),
      user_message: await probe.thinking((reasoning) => [
        textOf({
          role: 'assistant',
          content: STAND_IN_ANSWER,
          ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
        }),
        QUESTION,
      ]),
    },
    fingerprint: probe.fingerprint(closeIds),
  };
}

class Probe {
  private readonly render: TemplateRenderer;
  /** By conversation; null: refused. */
  private readonly rendered = new Map<string, Int32Array | null>();

  constructor(render: TemplateRenderer) {
    this.render = render;
  }

  /** The id that follows a turn's content, whatever the content: of a turn of text, then of one of calls where that is another. */
  async closeIds(): Promise<readonly number[]> {
    const plain = await this.history(standInHistory([]));
    const other = await this.history([QUESTION, textOf({ role: 'assistant', content: 'no' })]);
    const close = plain === null || other === null ? null : firstClose(plain, other);
    if (close === null || plain === null) return [];
    const closing = closingOf(plain, [close]);
    const calls = await this.history(standInHistory(CALLS));
    const tail = calls === null ? null : (closingOf(calls, [close])?.tail ?? null);
    if (calls === null || closing === null || (tail !== null && equalIds(tail, closing.tail))) return [close];
    const others = await this.history([QUESTION, calling((index) => `{"id": ${index}}`)]);
    const second = others === null ? null : firstClose(calls, others);
    return second === null || second === close ? [close] : [close, second];
  }

  /** Whether messages of every kind come out the same behind a stand-in turn as behind a conversation with system text and tools. */
  async tailRender(closeIds: readonly number[]): Promise<boolean> {
    if (closeIds.length === 0) return false;
    const cases = [
      { short: standInHistory(CALLS), full: CALLED, added: RESULTS },
      { short: standInHistory(CALLS), full: CALLED, added: [...RESULTS, QUESTION] },
      { short: standInHistory([]), full: ANSWERED, added: [QUESTION] },
    ];
    for (const { short, full, added } of cases) {
      const behindShort = await this.suffix(short, added, NO_TOOLS, closeIds);
      const behindFull = behindShort && (await this.suffix(full, added, TOOLS, closeIds));
      if (!behindShort || !behindFull || !equalIds(behindShort, behindFull)) return false;
    }
    return true;
  }

  /** What becomes of thinking in the turn that `messages` begin with. */
  async thinking(messages: (reasoning: string | undefined) => readonly string[]): Promise<Boundary> {
    const [question = ''] = standInHistory([]);
    const without = await this.prompt([question, ...messages(undefined)]);
    const withIt = without && (await this.prompt([question, ...messages(THINKING)]));
    if (!without || !withIt) return 'unknown';
    if (equalIds(without, withIt)) return 'dropped';
    return withIt.length - without.length >= LEAST_THINKING_IDS ? 'kept' : 'unknown';
  }

  /** Of what stands behind the first turn: some templates write the date into that. Null when nothing was rendered. */
  fingerprint(closeIds: readonly number[]): string | null {
    const hash = createHash('sha256');
    let seen = false;
    for (const [conversation, ids] of this.rendered) {
      const part = ids === null ? null : (behindClose(ids, closeIds, closeIds.length === 0 ? 0 : 1) ?? ids);
      seen ||= part !== null;
      hash.update(JSON.stringify([conversation, part === null ? null : [...part]]));
    }
    return seen ? hash.digest('hex') : null;
  }

  private async suffix(
    history: readonly string[],
    added: readonly string[],
    toolsText: string,
    closeIds: readonly number[],
  ): Promise<Int32Array | null> {
    const head = await this.history(history, toolsText);
    const closing = head && closingOf(head, closeIds);
    const whole = closing && (await this.prompt([...history, ...added], toolsText));
    return closing && whole && suffixOf(whole, closeIds, closing);
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
    const ids = await this.render(texts, { toolsText, generationPrompt }).catch(refused);
    this.rendered.set(conversation, ids);
    return ids;
  }
}

function refused(error: unknown): null {
  if (FloeError.is(error) && error.code === 'engine_rejected') return null;
  throw error;
}

/**
 * The first id of what two renderings end in alike, if their texts do not change how often it occurs: a line break behind the
 * content, say, is no close.
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
