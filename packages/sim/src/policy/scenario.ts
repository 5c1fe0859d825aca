import { readFile } from 'node:fs/promises';
import { FloeError, parseAs } from '@floe-rl/core';
import { parse as parseYaml } from 'yaml';
import { z } from 'zod';

/** A condition on text with several optional parts. The text must meet every part that is given. */
const textConditionSchema = z
  .strictObject({
    contains: z.string().min(1).optional(),
    regex: z
      .string()
      .refine(isRegex, 'is not a valid regular expression')
      .optional()
      .describe('JavaScript, flags `su`'),
  })
  .refine(({ contains, regex }) => contains !== undefined || regex !== undefined, 'needs `contains` or `regex`');
export type TextCondition = z.infer<typeof textConditionSchema>;

/** A condition on a count. A plain number requires exactly that count. */
const countConditionSchema = z.preprocess(
  (value) => (typeof value === 'number' ? { min: value, max: value } : value),
  z.strictObject({ min: z.int().min(0).optional(), max: z.int().min(0).optional() }),
);
export type CountCondition = z.infer<typeof countConditionSchema>;

/** Conditions on the conversation of one request. The conversation must meet every condition that is given. */
const ruleConditionSchema = z.strictObject({
  assistant_turns: countConditionSchema
    .optional()
    .describe('number of earlier assistant turns: a number, or min and max'),
  last_role: z.enum(['system', 'user', 'tool', 'assistant']).optional(),
  last_user: textConditionSchema.optional().describe('text of the last user message that is not a tool result'),
  last_tool_result: textConditionSchema.optional(),
  system: textConditionSchema.optional().describe('text of the system turn, including tool definitions'),
  tools: z.array(z.string()).optional().describe('names that must all be among the tools of the request'),
  images: countConditionSchema.optional().describe('number of images in the conversation: a number, or min and max'),
});
export type RuleCondition = z.infer<typeof ruleConditionSchema>;

/** Greatest absolute value of a logit. Larger values give probabilities that a 64-bit float rounds to 0 or 1. */
export const MAX_LOGIT = 30;

/** Maximum number of noise tokens (randomly drawn words) of a thinking block; more than any context window of the simulator. */
const MAX_NOISE_TOKENS = 100_000;

/** Schema of a thinking block. A plain number is the number of its noise tokens, which are randomly drawn words. */
const thinkSchema = z.preprocess(
  (value) => (typeof value === 'number' ? { noise: value } : value),
  z.strictObject({
    text: z
      .string()
      .refine((text) => text === text.trim(), 'must not begin or end with white space')
      .refine(hasNoDelimiter, 'must not contain a delimiter token')
      .default(''),
    noise: z.int().min(0).max(MAX_NOISE_TOKENS).default(0).describe('number of noise tokens after the text'),
  }),
);

const callSchema = z.strictObject({
  tool: z.string().min(1),
  arguments: z.record(z.string(), z.unknown()).default({}),
});

const choiceSchema = z.strictObject({
  id: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/, 'must be letters, digits, ".", "_", "-"'),
  options: z
    .array(
      z.strictObject({
        logit: z.number().min(-MAX_LOGIT).max(MAX_LOGIT).default(0),
        get reply(): z.ZodArray<typeof segmentSchema> {
          return z.array(segmentSchema);
        },
      }),
    )
    .min(2),
});

/**
 * One part of a scripted reply. The schema is an object with optional keys instead of a union, so that error messages name the invalid
 * field.
 */
const segmentSchema = z
  .strictObject({
    think: thinkSchema.optional(),
    text: z.string().min(1).optional(),
    call: callSchema.optional(),
    raw: z
      .string()
      .min(1)
      .refine(hasNoTurnDelimiter, 'must not contain a turn delimiter')
      .optional()
      .describe('written unchanged, also after calls; only further raw text may follow'),
    choice: choiceSchema.optional(),
  })
  .refine(hasOnePart, 'needs exactly one of `think`, `text`, `call`, `raw`, `choice`');
export type Segment = z.infer<typeof segmentSchema>;

const ruleSchema = z.strictObject({
  when: ruleConditionSchema.default({}),
  reply: z.array(segmentSchema).min(1),
  spelling: z
    .enum(['merged', 'letters'])
    .default('merged')
    .describe('letters: the policy samples one letter per token, so that re-encoding its text gives other ids'),
  end: z
    .enum(['<|im_end|>', '<|endoftext|>'])
    .default('<|im_end|>')
    .describe('the token that ends the turn; the template always closes it with <|im_end|>'),
});

/** A named list of rules that defines the policy's replies to the tasks that it matches. */
export const scenarioSchema = z.strictObject({
  name: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/, 'must be letters, digits, ".", "_", "-"'),
  match: textConditionSchema
    .optional()
    .describe('condition on the first user message; without it every request matches'),
  rules: z.array(ruleSchema).min(1).describe('the first rule whose conditions hold gives the reply'),
});
/** A scenario after defaults were applied. */
export type Scenario = z.infer<typeof scenarioSchema>;
/** A scenario as a file or a test gives it, before defaults are applied. */
export type ScenarioInput = z.input<typeof scenarioSchema>;

export const scenarioListSchema = z.array(scenarioSchema);

/** Schema of a scenario file's content. */
const scenarioFileSchema = z.strictObject({ scenarios: scenarioListSchema.min(1) });

/** Replies to the requests that no other scenario matches. The random choice in its reply makes the logprobs non-trivial. */
export const DEFAULT_SCENARIO: Scenario = {
  name: 'default',
  rules: [
    {
      when: {},
      spelling: 'merged',
      end: '<|im_end|>',
      reply: [
        {
          choice: {
            id: 'answer',
            options: [
              { logit: 0.5, reply: [{ text: 'Understood. There is nothing left to do.' }] },
              { logit: 0, reply: [{ text: 'Understood. The work is done.' }] },
              { logit: -0.5, reply: [{ text: 'This is a simulated model; no scenario covers the request.' }] },
            ],
          },
        },
      ],
    },
  ],
};

/**
 * Validates the parsed content of one scenario file. `source` names the file in error messages. Throws `schema_violation` with the
 * path of each invalid field.
 */
export function parseScenarios(value: unknown, source: string): Scenario[] {
  return parseAs(scenarioFileSchema, value, source).scenarios;
}

/**
 * Reads scenario files (YAML or JSON) and returns their scenarios in order. Throws `bad_request` for a file that cannot be read or is
 * not valid YAML, and `schema_violation` for an invalid scenario.
 */
export async function loadScenarios(paths: readonly string[]): Promise<Scenario[]> {
  const scenarios: Scenario[] = [];
  for (const path of paths) {
    let value: unknown;
    try {
      value = parseYaml(await readFile(path, 'utf8'));
    } catch (cause) {
      throw new FloeError('bad_request', `scenario file ${path}: ${(cause as Error).message}`, { path }, cause);
    }
    scenarios.push(...parseScenarios(value, `scenario file ${path}`));
  }
  return scenarios;
}

function hasOnePart(segment: object): boolean {
  return Object.values(segment).filter((part) => part !== undefined).length === 1;
}

function isRegex(pattern: string): boolean {
  try {
    new RegExp(pattern, 'su');
    return true;
  } catch {
    return false;
  }
}

function hasNoDelimiter(text: string): boolean {
  return !/<\/?think>/.test(text) && hasNoTurnDelimiter(text);
}

function hasNoTurnDelimiter(text: string): boolean {
  return !/<\|(?:im_start|im_end|endoftext)\|>/.test(text);
}
