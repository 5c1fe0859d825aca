import type { ChatMessage } from '@floe-rl/core/schema';
import { type BrokenCall, type CheckedCall, isBroken } from './calls.ts';
import type { Episode } from './episode.ts';
import { type HintKind, type HintValues, hintText } from './hints.ts';
import type { CallOutcome } from './run-calls.ts';

/** Returns the hint of a kind, and counts it; `null` when the episode has this kind switched off. */
export type Hinting = (kind: HintKind, values?: HintValues) => string | null;

/** Returns how an episode gives hints. */
export function hintingOf({ hints, count }: Pick<Episode, 'hints' | 'count'>): Hinting {
  return (kind, values = {}) => {
    const text = hintText(hints, kind, values);
    if (text !== null) count(`hints.${kind}`);
    return text;
  };
}

/** Returns the hints at calls that are broken or have failed. `tools` are the names of all tools. */
export function callHints(
  calls: readonly (CheckedCall | BrokenCall)[],
  outcomes: readonly CallOutcome[],
  tools: readonly string[],
  hint: Hinting,
): string[] {
  const hints: (string | null)[] = [];
  for (const call of calls) {
    if (isBroken(call)) hints.push(hint(call.kind, { tools: tools.join(', '), tool: call.call.function.name }));
  }
  for (const { call, isError } of outcomes) {
    if (isBroken(call) || !isError) continue;
    const isEdit = call.tool.isEdit?.(call.args) === true;
    hints.push(hint(isEdit ? 'failed_edit' : 'tool_failed', { tool: call.tool.name }));
  }
  return [...new Set(hints.filter((text) => text !== null))];
}

/** Appends hints to the last answer, because some chat templates allow no user message between a tool result and the next reply. */
export function withHints(answers: readonly ChatMessage[], hints: readonly string[]): ChatMessage[] {
  const last = answers.at(-1);
  if (hints.length === 0 || last?.role !== 'tool') return [...answers];
  const note = `\n\n${hints.map((hint) => `[${hint}]`).join('\n')}`;
  const content =
    typeof last.content === 'string'
      ? `${last.content}${note}`
      : [...last.content, { type: 'text' as const, text: note }];
  return [...answers.slice(0, -1), { ...last, content }];
}
