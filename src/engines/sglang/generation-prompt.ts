/** Renders conversations of a few messages, always with the opening of the assistant's turn behind them; null: the template refuses. */
export type OpenRenderer = (messageTexts: readonly string[], toolsText: string) => Promise<Int32Array | null>;

const TOOLS = '[{"type":"function","function":{"name":"look","description":"looks","parameters":{"type":"object"}}}]';

const message = (role: string, content: string): string => JSON.stringify({ role, content });
const CALL = { id: 'call_1', type: 'function', function: { name: 'look', arguments: '{}' } };
const calling = (thinking: object): string =>
  JSON.stringify({ role: 'assistant', content: 'bravo', ...thinking, tool_calls: [CALL] });
const RESULT = JSON.stringify({ role: 'tool', tool_call_id: 'call_1', content: 'delta' });

/** A user message, an assistant's turn behind it, and what may follow that. */
const SHAPES = [
  { tools: '[]', turn: message('assistant', 'bravo'), next: message('user', 'delta') },
  // Many templates show a turn otherwise once a user message follows, and some a last turn without thinking.
  { tools: TOOLS, turn: calling({}), next: RESULT },
  { tools: TOOLS, turn: calling({ reasoning_content: 'hotel' }), next: RESULT },
];

/**
 * The ids with which a template opens the assistant's turn, of a server that renders no conversation without them: they are
 * what two renderings of one conversation cease to share where it goes on. Since turns open alike, that place is a little too late; how much
 * is seen from how the first turn of all opens. Null when the renderings do not fit together that way.
 */
export async function learnGenerationPrompt(render: OpenRenderer): Promise<Int32Array | null> {
  const [one, other] = await Promise.all([
    render([message('system', 'charlie'), message('user', 'alpha')], '[]'),
    render([message('system', 'echo'), message('user', 'alpha')], '[]'),
  ]);
  const user = message('user', 'alpha');
  // Templates without a system turn open the user's instead.
  const [first, second] =
    one && other ? [one, other] : [await render([user], '[]'), await render([message('user', 'echo')], '[]')];
  if (first === null || second === null) return null;
  const head = first.subarray(0, sharedLength(first, second));
  for (const { tools, turn, next } of SHAPES) {
    const [begun, ended, continued] = await Promise.all([
      render([user], tools),
      render([user, turn], tools),
      render([user, turn, next], tools),
    ]);
    if (begun === null || ended === null || continued === null) continue;
    const shared = ended.subarray(0, sharedLength(ended, continued));
    const opening = ended.slice(shared.length - openingLength(shared, head));
    const bare = withoutEnd(begun, opening);
    const bareEnded = withoutEnd(ended, opening);
    if (bare === null || bareEnded === null || withoutEnd(continued, opening) === null) continue;
    if (sharedLength(bare, ended) === bare.length && sharedLength(bareEnded, continued) === bareEnded.length) {
      return opening;
    }
  }
  return null;
}

/** `ids` without `end` behind them; null when they do not end so. */
export function withoutEnd(ids: Int32Array, end: Int32Array): Int32Array | null {
  const length = ids.length - end.length;
  if (length < 0 || !end.every((id, index) => ids[length + index] === id)) return null;
  return ids.subarray(0, length);
}

export function sharedLength(a: Int32Array, b: Int32Array): number {
  const most = Math.min(a.length, b.length);
  let length = 0;
  while (length < most && a[length] === b[length]) length++;
  return length;
}

/** Before the first turn stand a mark of the beginning or two; further on, what looks like an opening may be anything. */
const MAX_START_IDS = 3;

/** How many of the last ids are the first of a turn's opening, which `head` holds one of, with the name of its role behind them. */
function openingLength(ids: Int32Array, head: Int32Array): number {
  for (let length = Math.min(ids.length, head.length - 1); length > 0; length--) {
    const end = ids.subarray(ids.length - length);
    for (let from = 0; from <= MAX_START_IDS && from + length < head.length; from++) {
      if (end.every((id, index) => head[from + index] === id)) return length;
    }
  }
  return 0;
}
