import { readFile } from 'node:fs/promises';
import { parse as parseYaml } from 'yaml';
import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';

/** A condition on text: every part given must hold. */
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

/** A number alone means exactly that many. */
const countConditionSchema = z.preprocess(
  (value) => (typeof value === 'number' ? { min: value, max: value } : value),
  z.strictObject({ min: z.int().min(0).optional(), max: z.int().min(0).optional() }),
);
export type CountCondition = z.infer<typeof countConditionSchema>;

/** Evaluated on the conversation of one request; all that are given must hold. */
const ruleConditionSchema = z.strictObject({
  assistant_turns: countConditionSchema.optional().describe('earlier assistant turns: a number, or min and max'),
  last_role: z.enum(['system', 'user', 'tool', 'assistant']).optional(),
  last_user: textConditionSchema.optional().describe('text of the last user message that is no tool result'),
  last_tool_result: textConditionSchema.optional(),
  system: textConditionSchema.optional().describe('text of the system turn, tool definitions included'),
  tools: z.array(z.string()).optional().describe('names that must all be among the tools offered'),
  images: countConditionSchema.optional().describe('images in the conversation: a number, or min and max'),
});
export type RuleCondition = z.infer<typeof ruleConditionSchema>;

/** Logits beyond this give probabilities that a 64-bit float rounds to 0 or 1. */
export const MAX_LOGIT = 30;

/** Longer thinking than any context window of the simulator. */
const MAX_NOISE_TOKENS = 100_000;

/** A number alone means that much noise. */
const thinkSchema = z.preprocess(
  (value) => (typeof value === 'number' ? { noise: value } : value),
  z.strictObject({
    text: z
      .string()
      .refine((text) => text === text.trim(), 'must not begin or end with white space')
      .refine(hasNoDelimiter, 'must not contain a delimiter token')
      .default(''),
    noise: z.int().min(0).max(MAX_NOISE_TOKENS).default(0).describe('noise tokens after the text'),
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

/** One part of a reply. One object with five optional keys, not a union, so that errors name the field inside. */
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
      .describe('written as it is, also behind calls; only further raw text may follow'),
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
    .describe('letters: the policy writes letter by letter, so that encoding its text again gives other ids'),
  end: z
    .enum(['<|im_end|>', '<|endoftext|>'])
    .default('<|im_end|>')
    .describe('the token that ends the turn; the template always closes it with <|im_end|>'),
});
export type Rule = z.infer<typeof ruleSchema>;

export const scenarioSchema = z.strictObject({
  name: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/, 'must be letters, digits, ".", "_", "-"'),
  match: textConditionSchema.optional().describe('on the first user message; without it every request matches'),
  rules: z.array(ruleSchema).min(1).describe('the first whose conditions hold gives the reply'),
});
export type Scenario = z.infer<typeof scenarioSchema>;
export type ScenarioInput = z.input<typeof scenarioSchema>;

export const scenarioListSchema = z.array(scenarioSchema);

export const scenarioFileSchema = z.strictObject({ scenarios: scenarioListSchema.min(1) });

/** Answers whatever no scenario covers, so that any client gets a reply. Its choice gives the reply real logprobs. */
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
 * Checks one parsed scenario file. Throws `schema_violation` naming the path of each wrong field.
 * `source` names the file in messages.
 */
export function parseScenarios(value: unknown, source: string): Scenario[] {
  return parseAs(scenarioFileSchema, value, source).scenarios;
}

/** Reads YAML or JSON scenario files in order. Throws `bad_request` (unreadable or no YAML) or `schema_violation`. */
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
