import { FloeError, lastBoxed, parseJson } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool, Content, ToolCall } from '@floe-rl/core/schema';
import { z } from 'zod';

/**
 * How an agent writes its action: `tool` is a call of the tool that the observation declares; `text` is the last `<answer>…</answer>` of the
 * reply, else its last `\boxed{…}`, else its whole text.
 */
export const actionFormatSchema = z.enum(['tool', 'text']).default('tool');
export type ActionFormat = z.infer<typeof actionFormatSchema>;

/** Maximum number of characters of a reply, taken from its end, in which an action is searched. */
const MAX_TEXT_CHARS = 65_536;
/** Maximum number of values in the arguments of a tool call. */
const MAX_VALUES = 10_000;
/** Maximum number of characters of a model's text that an observation repeats. */
const MAX_QUOTED_CHARS = 80;
/** Maximum number of characters of an observation that explains what is wrong with an action. */
const MAX_PROBLEM_CHARS = 400;

/** The actions of a game: a tool with one parameter. */
export type ActionForm<Action extends string | number> = {
  readonly tool: string;
  readonly description: string;
  readonly parameter: string;
  readonly schema: z.ZodType<Action>;
  /** Reads an action that was written as text. Returns `null` when it is none. */
  fromText(text: string): Action | null;
};

type FormNames = { readonly tool: string; readonly description: string; readonly parameter: string };

/** Returns the form of actions that are one of several words. As text, their case does not matter. */
export function choiceForm<Choice extends string>(names: FormNames, choices: readonly Choice[]): ActionForm<Choice> {
  return {
    ...names,
    schema: z.enum(choices),
    fromText: (text) => choices.find((choice) => choice.toLowerCase() === text.toLowerCase()) ?? null,
  };
}

/** Returns the form of actions that are integers from `min` to `max`. */
export function integerForm(names: FormNames, min: number, max: number): ActionForm<number> {
  return {
    ...names,
    schema: z.int().min(min).max(max),
    fromText: (text) =>
      /^[+-]?\d{1,15}$/.test(text) && Number(text) >= min && Number(text) <= max ? Number(text) : null,
  };
}

/** Returns the form of actions that are words of `length` letters from a to z. As text, their case does not matter. */
export function wordForm(names: FormNames, length: number): ActionForm<string> {
  const pattern = new RegExp(`^[a-z]{${length}}$`);
  const schema = z.string().min(length).max(length).regex(pattern);
  return { ...names, schema, fromText: (text) => (pattern.test(text.toLowerCase()) ? text.toLowerCase() : null) };
}

/** Returns the tool that an observation declares for a form of actions. */
export function toolOf<Action extends string | number>(form: ActionForm<Action>): ChatTool {
  return chatTool(form.tool, form.description, z.strictObject({ [form.parameter]: form.schema }));
}

/** Returns a tool whose parameters have the given schema. */
export function chatTool(name: string, description: string, schema: z.ZodType): ChatTool {
  const { $schema: _, ...parameters } = z.toJSONSchema(schema, { io: 'input' });
  return { type: 'function', function: { name, description, parameters } };
}

/** What an environment found in a reply. */
export type ReadReply<Action> = {
  /** The action; `null` when the reply has none that can be read, which `problem` explains. */
  readonly action: Action | null;
  readonly problem: string;
  /** Returns the messages that answer the reply with an observation. They answer every tool call of it. */
  answer(observation: Content): ChatMessage[];
};

/** Reads the action in a reply. Never throws. */
export function readReply<Action extends string | number>(
  form: ActionForm<Action>,
  format: ActionFormat,
  reply: AssistantMessage,
): ReadReply<Action> {
  const { action, problem } = format === 'tool' ? fromCall(form, reply) : fromText(form, reply.content ?? '');
  return { action, problem, answer: (observation) => answersTo(reply, format, observation) };
}

type Reading<Action> = { readonly action: Action | null; readonly problem: string };

function fromCall<Action extends string | number>(form: ActionForm<Action>, reply: AssistantMessage): Reading<Action> {
  const [call] = reply.tool_calls ?? [];
  if (call === undefined) return { action: null, problem: `The reply calls no tool. Call the tool ${form.tool}.` };
  const schema = z.strictObject({ [form.parameter]: form.schema });
  const checked = checkCall(call, new Map([[form.tool, schema]]));
  if ('problem' in checked) return { action: null, problem: checked.problem };
  return { action: checked.args[form.parameter] as Action, problem: '' };
}

function fromText<Action extends string | number>(form: ActionForm<Action>, content: string): Reading<Action> {
  const written = answerIn(content);
  const action = form.fromText(written);
  if (action !== null) return { action, problem: '' };
  if (written === '') return { action: null, problem: 'The reply has no action.' };
  return { action: null, problem: `${quotedStart(written)} is not a ${form.parameter}.` };
}

/** Returns the last `<answer>…</answer>` of a text, else its last `\boxed{…}`, else the whole text; without white space around it. */
export function answerIn(content: string): string {
  const text = content.slice(-MAX_TEXT_CHARS);
  const end = text.lastIndexOf('</answer>');
  const start = end < 0 ? -1 : text.lastIndexOf('<answer>', end);
  if (start >= 0) return text.slice(start + '<answer>'.length, end).trim();
  return (lastBoxed(text) ?? text).trim();
}

function answersTo(reply: AssistantMessage, format: ActionFormat, observation: Content): ChatMessage[] {
  const calls = reply.tool_calls ?? [];
  const toolMessage = (call: ToolCall, content: Content): ChatMessage => ({
    role: 'tool',
    tool_call_id: call.id,
    content,
  });
  if (format === 'text') {
    const refusal = 'There are no tools here. Write the action as text.';
    return [...calls.map((call) => toolMessage(call, refusal)), { role: 'user', content: observation }];
  }
  if (calls.length === 0) return [{ role: 'user', content: observation }];
  const refusal = 'Not played: only the first tool call of a reply is played.';
  return calls.map((call, i) => toolMessage(call, i === 0 ? observation : refusal));
}

/** The checked arguments of a tool call, or what is wrong with it, as the agent reads it. */
export type CheckedCall =
  | { readonly name: string; readonly args: Record<string, unknown> }
  | { readonly problem: string };

/** Checks the name and the arguments of a tool call. `tools` are the schemas of the arguments by the name of the tool. Never throws. */
export function checkCall(call: ToolCall, tools: ReadonlyMap<string, z.ZodType>): CheckedCall {
  const { name, arguments: json } = call.function;
  const schema = tools.get(name);
  if (schema === undefined) {
    return { problem: `There is no tool ${quotedStart(name)}. The tools are: ${[...tools.keys()].join(', ')}.` };
  }
  const value = parsed(json);
  if (value === undefined) return { problem: `The arguments of ${name} are not valid JSON: ${quotedStart(json)}.` };
  const checked = schema.safeParse(value);
  if (checked.success) return { name, args: checked.data as Record<string, unknown> };
  const issues = checked.error.issues.slice(0, 3).map(({ path, message }) => [...path.map(String), message].join(': '));
  return { problem: excerpt(`The arguments of ${name} are wrong: ${issues.join('; ')}.`, MAX_PROBLEM_CHARS) };
}

/** Returns the value of a JSON text; `undefined` when it is not valid. */
function parsed(json: string): unknown {
  try {
    return parseJson(json, MAX_VALUES);
  } catch (thrown) {
    if (FloeError.is(thrown)) return undefined;
    throw thrown;
  }
}

/** Returns the beginning of a model's text in quotes, with characters that are not valid Unicode escaped. */
function quotedStart(text: string): string {
  return JSON.stringify(text.length > MAX_QUOTED_CHARS ? `${text.slice(0, MAX_QUOTED_CHARS)}…` : text);
}

/** Returns the beginning of a text that may contain a model's text, as valid Unicode. */
function excerpt(text: string, maxChars: number): string {
  const short = text.length > maxChars ? `${text.slice(0, maxChars)}…` : text;
  return short.toWellFormed();
}

/** Returns the reply of a player who plays an action. `index` is the action's number in the episode and part of the id of its tool call. */
export function replyOf<Action extends string | number>(
  form: ActionForm<Action>,
  format: ActionFormat,
  action: Action,
  index: number,
): AssistantMessage {
  if (format === 'text') return { role: 'assistant', content: `<answer>${action}</answer>` };
  return callReply(`call_${index}`, form.tool, { [form.parameter]: action });
}

/** Returns a reply that calls one tool. */
export function callReply(id: string, name: string, args: object): AssistantMessage {
  const call = { id, type: 'function' as const, function: { name, arguments: JSON.stringify(args) } };
  return { role: 'assistant', content: null, tool_calls: [call] };
}
