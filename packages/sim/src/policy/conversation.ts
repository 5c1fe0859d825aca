import { IMAGE_PATTERN } from '../messages.ts';
import type { Vocabulary } from '../vocabulary.ts';

/** The conversation in a prompt. It is parsed from the prompt's ids alone, because a model gets nothing else. */
export type Conversation = {
  readonly system: string;
  readonly firstUser: string;
  readonly lastUser: string;
  readonly lastRole: 'system' | 'user' | 'tool' | 'assistant';
  /** The latest tool result; `null` when the conversation has none. */
  readonly lastToolResult: string | null;
  /** Number of complete assistant turns in the conversation. */
  readonly assistantTurns: number;
  /** Names of the tools that the system turn offers. */
  readonly tools: readonly string[];
  /** Number of images in user and tool turns. */
  readonly images: number;
  /** Ids of the assistant turn that the prompt leaves open at its end, without the header of the turn. The reply continues after them. */
  readonly openTurn: readonly number[];
};

type Turn = { readonly role: string; readonly ids: readonly number[]; readonly closed: boolean };

/** Parses a prompt. When the ids contain no turn delimiter, the prompt counts as one user message. */
export function parseConversation(vocabulary: Vocabulary, promptIds: ArrayLike<number>): Conversation {
  const turns = splitTurns(vocabulary, promptIds);
  let system = '';
  let firstUser: string | null = null;
  let lastUser = '';
  let lastToolResult: string | null = null;
  let lastRole: Conversation['lastRole'] = 'user';
  let assistantTurns = 0;
  let openTurn: readonly number[] = [];
  for (const [index, turn] of turns.entries()) {
    if (turn.role === 'assistant') {
      if (!turn.closed && index === turns.length - 1) {
        openTurn = turn.ids;
        continue;
      }
      assistantTurns++;
      lastRole = 'assistant';
    } else if (turn.role === 'system') {
      system = vocabulary.decode(turn.ids);
      lastRole = 'system';
    } else if (turn.ids[0] === vocabulary.special.toolResponseOpen) {
      lastToolResult = lastResult(vocabulary, turn.ids);
      lastRole = 'tool';
    } else {
      lastUser = vocabulary.decode(turn.ids);
      firstUser ??= lastUser;
      lastRole = 'user';
    }
  }
  return {
    system,
    firstUser: firstUser ?? '',
    lastUser,
    lastRole,
    lastToolResult,
    assistantTurns,
    tools: toolNames(system),
    // The number is computed on demand, because counting decodes the whole conversation and only conditions on images need the number.
    get images() {
      return countImages(vocabulary, turns);
    },
    openTurn,
  };
}

function splitTurns(vocabulary: Vocabulary, promptIds: ArrayLike<number>): Turn[] {
  const { imStart, imEnd } = vocabulary.special;
  const turns: Turn[] = [];
  let start = -1;
  for (let i = 0; i <= promptIds.length; i++) {
    const id = promptIds[i];
    if (start >= 0 && (id === undefined || id === imStart || id === imEnd)) {
      turns.push(parseTurn(vocabulary, Array.prototype.slice.call(promptIds, start, i), id === imEnd));
      start = -1;
    }
    if (id === imStart) start = i + 1;
  }
  if (turns.length > 0) return turns;
  return [{ role: 'user', ids: Array.from(promptIds), closed: true }];
}

const NEWLINE = 0x0a;

/**
 * Splits a turn's ids into its header (the role's name and a newline) and the rest. The header or the rest may be missing, because a tool's
 * output can contain the delimiter that begins a turn. When a token contains more than the newline, the text after the newline is encoded
 * separately, as if the header had been encoded by itself.
 */
function parseTurn(vocabulary: Vocabulary, ids: number[], closed: boolean): Turn {
  const end = ids.findIndex((id) => vocabulary.bytes(id).includes(NEWLINE));
  if (end < 0) return { role: vocabulary.decode(ids), ids: [], closed };
  const head = vocabulary.decode(ids.slice(0, end + 1));
  const newline = head.indexOf('\n');
  const afterNewline = head.slice(newline + 1);
  const rest = ids.slice(end + 1);
  return {
    role: head.slice(0, newline),
    ids: afterNewline === '' ? rest : [...vocabulary.encode(afterNewline), ...rest],
    closed,
  };
}

function lastResult(vocabulary: Vocabulary, ids: readonly number[]): string {
  const { toolResponseOpen, toolResponseClose } = vocabulary.special;
  const start = ids.lastIndexOf(toolResponseOpen) + 1;
  const end = ids.indexOf(toolResponseClose, start);
  return vocabulary.decode(ids.slice(start, end < 0 ? ids.length : end)).replace(/^\n|\n$/g, '');
}

function countImages(vocabulary: Vocabulary, turns: readonly Turn[]): number {
  let count = 0;
  for (const { role, ids } of turns) {
    if (role === 'user') count += vocabulary.decode(ids).match(IMAGE_PATTERN)?.length ?? 0;
  }
  return count;
}

/**
 * Returns the tool names in the last `<tools>` block. The template writes tool definitions after the system text, which may itself contain
 * such a block.
 */
function toolNames(system: string): string[] {
  const start = system.lastIndexOf('<tools>\n');
  const end = system.indexOf('\n</tools>', start);
  if (start < 0 || end < 0) return [];
  const block = system.slice(start, end);
  return block.split('\n').flatMap((line) => /"name":\s*"((?:[^"\\]|\\.)*)"/.exec(line)?.[1] ?? []);
}
