import { z } from 'zod';

/** Hint texts by their kind. `{name}` stands for a value. */
const DEFAULT_TEXTS = {
  no_call: 'Your reply has no tool call. Call one of your tools: {tools}.',
  bad_json: 'The arguments of a tool call must be one JSON object. Write the call once more.',
  unknown_tool: 'You have these tools: {tools}.',
  bad_arguments: 'Compare the arguments with the description of {tool}, and write the call once more.',
  tool_failed: 'The call of {tool} failed. Read the message before you try something else.',
  failed_edit: 'The file was not changed. View the part that you want to change, and copy its text exactly.',
  repeated_call: 'You have made the same call {count} times. Its result does not change; try something else.',
  steps_left: 'You have {count} replies left.',
  context_left: 'About {percent} % of your context is left. Come to an end.',
  last_step: 'This is your last reply. Give your final answer now.',
  too_early: 'You have not used {tool} yet. Continue your work before you end it.',
} as const;

export type HintKind = keyof typeof DEFAULT_TEXTS;
const HINT_KINDS = Object.keys(DEFAULT_TEXTS) as [HintKind, ...HintKind[]];

/**
 * Hints that an agent gets beside the results of its calls: all (`true`), none (`false`), or by kind: on, off, or another text in which
 * `{name}` stands for a value.
 */
export const hintSettingsSchema = z.union([
  z.boolean(),
  z.partialRecord(z.enum(HINT_KINDS), z.union([z.boolean(), z.string().min(1)])),
]);
export type HintSettings = z.infer<typeof hintSettingsSchema>;

/** Values that hint texts may contain. */
export type HintValues = Readonly<Record<string, string | number>>;

/** Returns the text of a hint; `null` when the hint is switched off. Kinds that the settings do not name are on. */
export function hintText(settings: HintSettings, kind: HintKind, values: HintValues = {}): string | null {
  const setting = typeof settings === 'boolean' ? settings : (settings[kind] ?? true);
  if (setting === false) return null;
  const text = setting === true ? DEFAULT_TEXTS[kind] : setting;
  return text.replaceAll(/\{(\w+)\}/g, (placeholder, name: string) => String(values[name] ?? placeholder));
}
